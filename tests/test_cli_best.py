"""`vpem model best`: the best of several fits, and which models cannot be compared."""

import pytest

from vpem.files.models import read_model

from .cli_support import done, make_data, run
from .tables import each

pytestmark = pytest.mark.filterwarnings("ignore::vpem.VpemWarning")


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """A folder with fits of three seeds, which end at different places."""
    import vpem_cli

    folder = tmp_path_factory.mktemp("fits")
    data = make_data(folder / "data.h5")
    for seed in range(3):
        words = ["-k", 3, "--seed", seed, "--init", "random", "--max-iter", 15]
        vpem_cli.run([str(word) for word in ["fit", data, *words, "-o", folder / f"{seed}.h5"]])
    return folder


def found(fits):
    return {seed: read_model(fits / f"{seed}.h5").report for seed in range(3)}


@each(("criterion", "sign"), [("log-likelihood", 1), ("bic", -1), ("aic", -1)])
def test_the_best_is_printed_and_copied(capsys, tmp_path, fits, criterion, sign):
    reports = found(fits)
    name = criterion.replace("-", "_")
    best = max(reports, key=lambda seed: sign * reports[seed][name])
    files = [fits / f"{seed}.h5" for seed in reports]
    copy = tmp_path / "best.h5"
    result = done(capsys, "model", "best", *files, "--criterion", criterion, "-o", copy)
    assert result.out == f"{files[best]}\n"
    assert "of 3 models" in result.err
    assert copy.read_bytes() == files[best].read_bytes()
    told = done(capsys, "model", "best", *files, "--criterion", criterion, "--json", "-q").json
    assert told["best"] == str(files[best])
    assert [one["seed"] for one in told["models"]] == [0, 1, 2]
    assert told["models"][1][name] == reports[1][name]
    assert "exists" in run(capsys, "model", "best", *files, "-o", copy).sentence
    done(capsys, "model", "best", *files, "-o", copy, "--force", "-q")
    over = run(capsys, "model", "best", *files, "-o", files[0], "--force")
    assert "is the input" in over.sentence
    copy.unlink()


def test_one_model_is_the_best_and_the_first_of_equals(capsys, fits, tmp_path):
    one = fits / "1.h5"
    same = tmp_path / "same.h5"
    same.write_bytes(one.read_bytes())
    assert done(capsys, "model", "best", one, "-q").out == f"{one}\n"
    assert done(capsys, "model", "best", same, one, "-q").out == f"{same}\n"
    assert done(capsys, "model", "best", one, same, "-q").out == f"{one}\n"


def test_models_that_cannot_be_compared(capsys, tmp_path, fits):
    one = fits / "0.h5"
    data = fits / "data.h5"

    def refused(name, *words, source=data):
        other = tmp_path / f"{name}.h5"
        done(capsys, "fit", source, "--max-iter", 3, "-o", other, *words, "-q")
        return run(capsys, "model", "best", one, other).sentence

    assert "the larger model; take --criterion bic" in refused("larger", "-k", 4)
    fewer = make_data(tmp_path / "fewer.h5", n_samples=90)
    assert "was fitted to 90 rows" in refused("90", "-k", 3, source=fewer)
    plain = make_data(tmp_path / "plain.h5", named=False)
    assert "have different features" in refused("names", "-k", 3, source=plain)
    narrow = make_data(tmp_path / "narrow.h5", named=False, n_features=4)
    assert "has 4 features" in refused("narrow_model", "-k", 3, source=narrow)
    elsewhere = make_data(tmp_path / "elsewhere.h5", seed=9)
    assert "was fitted to the data elsewhere.h5" in refused("else", "-k", 3, source=elsewhere)
    larger = tmp_path / "larger.h5"
    done(capsys, "model", "best", one, larger, "--criterion", "bic", "-q")
    assert run(capsys, "model", "best", one, data).code == 2
    assert "criterion" in run(capsys, "model", "best", one, "--criterion", "size").sentence
