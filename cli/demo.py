"""`vpem demo`: the main job, from data to a picture, in a folder that goes again."""

from __future__ import annotations

from .play import Keep, Play, folder

STEPS = (
    ("Ten agents hold three measurements each of 569 breast masses:",
     "data copy breast_cancer"),
    ("They fit a mixture together, along a cycle; measurements travel one hop, no further:",
     "fit breast_cancer.h5 --topology cycle --hops 1 --seed 0 -o model.h5"),
    ("The diagnoses took no part. How well do the two components agree with them?",
     "evaluate model.h5 breast_cancer.h5"),
    ("The component of each mass, and how certain that is:",
     "predict model.h5 breast_cancer.h5 --proba -o components.csv"),
    ("A picture of the features by which components are told apart:",
     "plot model.h5 --kind profile -o profile.png"),
)  # fmt: skip
"""What each command is for, and its words."""


def demo(keep: Keep = None) -> None:
    """Show the main job: fit real data, compare, predict, draw.

    Every command is printed as it is run, in a temporary folder: nothing is written to yours. It
    takes some seconds. See 'vpem study demo' for parties that meet over a network.

    Example: vpem demo --keep try
    """
    from .output import Screen

    with Screen() as screen, folder(keep) as home:
        play = Play(home, messages=True)
        for sentence, words in STEPS:
            play.tell(sentence)
            print(play.run("", words), flush=True)
        if keep is None:
            screen.say("nothing was kept; 'vpem demo --keep try' keeps all files in the folder try")
        else:
            screen.say(f"all files are in {keep}")
