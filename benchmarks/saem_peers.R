# Fits of nlme and lme4 beside those of benchmarks/saem_peers.py, which calls this:
#   Rscript saem_peers.R simulate MODEL ROWS.csv OUT.csv    columns set, id, time, value, x, dose
#   Rscript saem_peers.R chance ROWS.csv OUT.csv            columns kind, set, id, time, value, group
#   Rscript saem_peers.R public FOLDER [NAME ...]           writes FOLDER/NAME.csv and fits.csv; seconds
#                                                           of a fit, if names of data are given
# Estimates are named as those of vpem. Intervals are nlme's, and lme4's of Wald; NA: there are none.
suppressPackageStartupMessages({ library(nlme); library(lme4) })
given <- commandArgs(TRUE)
quiet <- function(x) suppressWarnings(suppressMessages(x))

row_of <- function(name, est, low = NA, high = NA, se = NA) data.frame(
  name = name, value = as.numeric(est), lower = as.numeric(low), upper = as.numeric(high),
  error = as.numeric(se), row.names = NULL)

# Estimates of lme and nlme. `fixed` and `random` are vpem's names; `parts` those of the variances'.
of_nlme <- function(m, fixed, random, residual, square) {
  at <- tryCatch(intervals(m), error = function(e) NULL)
  f <- fixef(m); se <- sqrt(diag(m$varFix))
  half <- 1.96 * se
  out <- row_of(fixed, f, f - half, f + half, se)
  G <- as.matrix(pdMatrix(m$modelStruct$reStruct)[[1]]) * m$sigma^2; re <- if (is.null(at)) NULL else at$reStruct[[1]]
  q <- nrow(G)
  for (i in 1:q) for (j in 1:i) {
    if (i == j) {
      ends <- if (is.null(re)) c(NA, NA) else unlist(re[i, c("lower", "upper")])^2
      out <- rbind(out, row_of(sprintf("var(%s)", random[i]), G[i, i], ends[1], ends[2]))
    } else if (q == 2 && any(abs(G[lower.tri(G)]) > 0))
      out <- rbind(out, row_of(sprintf("cov(%s, %s)", random[j], random[i]), G[i, j]))
  }
  s <- if (is.null(at)) rep(NA, 2) else at$sigma[c("lower", "upper")]
  p <- if (square) 2 else 1
  rbind(out, row_of(residual, m$sigma^p, s[1]^p, s[2]^p),
        row_of("log-likelihood", as.numeric(logLik(m))))
}

of_glmer <- function(m, fixed, random) {
  H <- m@optinfo$derivs$Hessian
  V <- tryCatch(2 * solve(H), error = function(e) matrix(NA, nrow(H), nrow(H)))
  f <- fixef(m); se <- sqrt(diag(as.matrix(vcov(m))))
  theta <- getME(m, "theta"); wide <- exp(1.96 * sqrt(V[1, 1]) / theta)
  rbind(row_of(fixed, f, f - 1.96 * se, f + 1.96 * se, se),
        row_of(sprintf("var(%s)", random), theta^2, (theta / wide)^2, (theta * wide)^2),
        row_of("log-likelihood", as.numeric(logLik(m))))
}

of_lmer <- function(m, fixed, random) {
  f <- fixef(m); se <- sqrt(diag(as.matrix(vcov(m)))); G <- VarCorr(m)[[1]]
  rbind(row_of(fixed, f, f - 1.96 * se, f + 1.96 * se, se),
        row_of(sprintf("var(%s)", random), diag(G)), row_of("residual variance", sigma(m)^2),
        row_of("log-likelihood", as.numeric(logLik(m))))
}

tight <- lmeControl(msTol = 1e-10, tolerance = 1e-10, maxIter = 200, msMaxIter = 500, opt = "optim")
loose <- nlmeControl(maxIter = 200, pnlsMaxIter = 20, msMaxIter = 200, returnObject = FALSE)

one_curve <- deriv(~ dose * exp(lka) / (exp(lv) * (exp(lka) - exp(lcl - lv))) *
  (exp(-exp(lcl - lv) * time) - exp(-exp(lka) * time)), c("lka", "lcl", "lv"),
  function(dose, time, lka, lcl, lv) {})
two_curve <- deriv(~ dose / exp(lv1) * (
  ((s + r) / 2 - exp(lq - lv2)) / r * exp(-(s + r) / 2 * time) +
  (exp(lq - lv2) - (s - r) / 2) / r * exp(-(s - r) / 2 * time)),
  c("s", "r", "lv1", "lq", "lv2"), function(dose, time, s, r, lv1, lq, lv2) {})
two <- function(dose, time, lcl, lv1, lq, lv2) {  # chain rule by hand for the rates' sum and gap
  k <- exp(lcl - lv1); a <- exp(lq - lv1); b <- exp(lq - lv2)
  s <- k + a + b; r <- sqrt(s^2 - 4 * k * b)
  v <- two_curve(dose, time, s, r, lv1, lq, lv2); g <- attr(v, "gradient")
  dr <- function(ds, dkb) (s * ds - 2 * dkb) / r
  slope <- function(ds, dkb) g[, "s"] * ds + g[, "r"] * dr(ds, dkb)
  value <- as.numeric(v)
  attr(value, "gradient") <- cbind(
    lcl = slope(k, k * b), lv1 = g[, "lv1"] + slope(-k - a, -k * b),
    lq = g[, "lq"] + slope(a + b, k * b), lv2 = g[, "lv2"] + slope(-b, -k * b))
  value
}

simulated <- list(
  linear = function(d) of_nlme(
    lme(value ~ time + x, d, ~ time | id, method = "ML", control = tight),
    c("intercept", "slope", "beta(intercept, x)"), c("intercept", "slope"),
    "residual variance", TRUE),
  logistic = function(d) of_glmer(
    glmer(value ~ time + x + (1 | id), d, binomial, nAGQ = 25),
    c("intercept", "slope", "beta(intercept, x)"), "intercept"),
  growth = function(d) of_nlme(
    nlme(value ~ SSlogis(time, a, m, s), d, fixed = a + m + s ~ 1, random = a ~ 1 | id,
         start = c(a = 200, m = 700, s = 350), method = "ML", control = loose),
    c("asymptote", "midpoint", "scale"), "asymptote", "residual sd", FALSE),
  "one-compartment" = function(d) of_nlme(
    nlme(value ~ one_curve(dose, time, lka, lcl, lv), d, fixed = lka + lcl + lv ~ 1,
         random = list(id = pdDiag(lka + lcl + lv ~ 1)),
         start = c(lka = log(1.5), lcl = log(0.04), lv = log(0.5)),
         weights = varPower(fixed = 1), method = "ML", control = loose),
    c("log ka", "log cl", "log v"), c("log ka", "log cl", "log v"), "residual sd", FALSE),
  "two-compartment" = function(d) of_nlme(
    nlme(value ~ two(dose, time, lcl, lv1, lq, lv2), d, fixed = lcl + lv1 + lq + lv2 ~ 1,
         random = list(id = pdDiag(lcl + lv1 ~ 1)),
         start = c(lcl = 0, lv1 = log(5), lq = log(2), lv2 = log(10)),
         weights = varPower(fixed = 1), method = "ML", control = loose),
    c("log cl", "log v1", "log q", "log v2"), c("log cl", "log v1"), "residual sd", FALSE))

if (given[1] == "simulate") {
  all <- read.csv(given[3]); out <- NULL
  for (one in unique(all$set)) {
    d <- all[all$set == one, ]; d$id <- factor(d$id)
    found <- tryCatch(quiet(simulated[[given[2]]](d)), error = function(e) NULL)
    if (!is.null(found)) out <- rbind(out, cbind(set = one, found))
  }
  write.csv(out, given[4], row.names = FALSE)
  quit()
}

if (given[1] == "chance") {  # p values of sets without effect, of lmerTest
  suppressPackageStartupMessages(library(lmerTest))
  all <- read.csv(given[2]); out <- NULL
  models <- list(slope = value ~ time + group + (time | id), intercept = value ~ time + group + (1 | id))
  for (kind in names(models)) for (one in unique(all$set)) for (reml in c(TRUE, FALSE)) {
    d <- all[all$set == one & all$kind == kind, ]; d$id <- factor(d$id)
    p <- coef(summary(quiet(lmerTest::lmer(models[[kind]], d, REML = reml))))[c("time", "group"), 5]
    out <- rbind(out, data.frame(kind = kind, set = one, how = if (reml) "REML" else "ML",
                                 what = c("time", "group"), p = p))
  }
  write.csv(out, given[3], row.names = FALSE)
  quit()
}

folder <- given[2]; fits <- NULL; only <- given[-(1:2)]
told <- function(name, d, fit) {  # writes the rows, and keeps the estimates
  if (length(only) && !(name %in% only)) return(invisible())
  again <- substitute(fit); here <- parent.frame()
  write.csv(d[order(match(d$id, unique(d$id))), ], file.path(folder, paste0(name, ".csv")),
            row.names = FALSE)
  found <- tryCatch(quiet(fit), error = function(e) {
    message(name, ": ", conditionMessage(e)); NULL })
  if (!is.null(found) && length(only)) found$seconds <- system.time(
    for (i in 1:10) quiet(eval(again, here)))[["elapsed"]] / 10
  if (!is.null(found)) fits <<- rbind(fits, cbind(data = name, found))
}
rows <- function(d, id, time, value, ...) {
  x <- data.frame(id = as.character(d[[id]]), time = as.numeric(d[[time]]),
                  value = as.numeric(d[[value]]), ...)
  x[order(x$id), ]
}
d <- as.data.frame(Orthodont); d$girl <- as.numeric(d$Sex == "Female")
told("Orthodont", rows(d, "Subject", "age", "distance", girl = d$girl), of_nlme(
  lme(distance ~ age * girl, d, ~ age | Subject, method = "ML", control = tight),
  c("intercept", "slope", "beta(intercept, girl)", "beta(slope, girl)"),
  c("intercept", "slope"), "residual variance", TRUE))
d <- as.data.frame(Oxboys)
told("Oxboys", rows(d, "Subject", "age", "height"), of_nlme(
  lme(height ~ age, d, ~ age | Subject, method = "ML", control = tight),
  c("intercept", "slope"), c("intercept", "slope"), "residual variance", TRUE))
d <- as.data.frame(sleepstudy)
told("sleepstudy", rows(d, "Subject", "Days", "Reaction"), of_nlme(
  lme(Reaction ~ Days, d, ~ Days | Subject, method = "ML", control = tight),
  c("intercept", "slope"), c("intercept", "slope"), "residual variance", TRUE))
d <- lme4::cbpp; one <- NULL
for (i in seq_len(nrow(d))) one <- rbind(one, data.frame(
  id = as.character(d$herd[i]), time = 0,
  value = rep(c(1, 0), c(d$incidence[i], d$size[i] - d$incidence[i])),
  p2 = as.numeric(d$period[i] == 2), p3 = as.numeric(d$period[i] == 3),
  p4 = as.numeric(d$period[i] == 4)))
told("cbpp", one[order(one$id), ], of_glmer(
  glmer(value ~ p2 + p3 + p4 + (1 | id), one, binomial, nAGQ = 25),
  c("intercept", "slope of p2", "slope of p3", "slope of p4"), "intercept"))
if (requireNamespace("MASS", quietly = TRUE)) {
  d <- MASS::epil; d$treated <- as.numeric(d$trt == "progabide")
  d$v4 <- d$V4; d$lb <- log(d$base / 4) - mean(log(d$base / 4)); d$la <- log(d$age) - mean(log(d$age))
  told("epil", rows(d, "subject", "period", "y", v4 = d$V4, treated = d$treated, lb = d$lb, la = d$la),
    of_glmer(
      glmer(y ~ v4 + treated + lb + la + (1 | subject), d, poisson, nAGQ = 25),
      c("intercept", "slope of v4", "slope of treated", "slope of lb", "slope of la"), "intercept"))
}
d <- lme4::grouseticks; d$y96 <- as.numeric(d$YEAR == "96"); d$y97 <- as.numeric(d$YEAR == "97")
told("grouseticks", rows(d, "BROOD", "INDEX", "TICKS", y96 = d$y96, y97 = d$y97, h = d$cHEIGHT),
  of_glmer(glmer(TICKS ~ y96 + y97 + cHEIGHT + (1 | BROOD), d, poisson, nAGQ = 25),
           c("intercept", "slope of y96", "slope of y97", "slope of h"), "intercept"))
if (requireNamespace("mlmRev", quietly = TRUE)) {
  d <- mlmRev::Mmmec; d$le <- log(d$expected)
  told("Mmmec", rows(d, "region", "county", "deaths", uvb = d$uvb, le = d$le), of_glmer(
    glmer(deaths ~ uvb + le + (1 | region), d, poisson, nAGQ = 25),
    c("intercept", "slope of uvb", "slope of le"), "intercept"))
}
d <- lme4::cake; d$plate <- paste(d$recipe, d$replicate)
told("cake", rows(d, "plate", "temp", "angle"), of_lmer(
  lmer(angle ~ temp + (1 | plate), d, REML = FALSE), c("intercept", "slope"), "intercept"))
d <- as.data.frame(Pixel); d$day2 <- d$day^2
told("Pixel", rows(d, "Dog", "day", "pixel", day2 = d$day2), of_lmer(
  lmer(pixel ~ day + day2 + (day | Dog), d, REML = FALSE),
  c("intercept", "slope", "slope of day2"), c("intercept", "slope")))
d <- as.data.frame(Orange); d$Tree <- as.character(d$Tree)
told("Orange", rows(d, "Tree", "age", "circumference"), of_nlme(
  nlme(circumference ~ SSlogis(age, a, m, s), d, fixed = a + m + s ~ 1, random = a ~ 1 | Tree,
       start = c(a = 192, m = 728, s = 348), method = "ML", control = loose),
  c("asymptote", "midpoint", "scale"), "asymptote", "residual sd", FALSE))
d <- as.data.frame(Loblolly); d$Seed <- as.character(d$Seed)
told("Loblolly", rows(d, "Seed", "age", "height"), of_nlme(
  nlme(height ~ SSasymp(age, a, r, l), d, fixed = a + r + l ~ 1, random = a ~ 1 | Seed,
       start = c(a = 103, r = -8.5, l = -3.3), method = "ML", control = loose),
  c("asymptote", "start", "log rate"), "asymptote", "residual sd", FALSE))
d <- as.data.frame(CO2); d$Plant <- as.character(d$Plant)
d$south <- as.numeric(d$Type == "Mississippi"); d$chilled <- as.numeric(d$Treatment == "chilled")
told("CO2", rows(d, "Plant", "conc", "uptake", south = d$south, chilled = d$chilled), of_nlme(
  nlme(uptake ~ SSasymp(conc, a, r, l), d,
       fixed = list(a ~ south + chilled, r ~ 1, l ~ 1), random = a ~ 1 | Plant,
       start = c(38, -10, -3, -30, -4.5), method = "ML", control = loose),
  c("asymptote", "beta(asymptote, south)", "beta(asymptote, chilled)", "start", "log rate"),
  "asymptote", "residual sd", FALSE))
d <- as.data.frame(Indometh); d$Subject <- as.character(d$Subject)
told("Indometh", rows(d, "Subject", "time", "conc"), of_nlme(
  nlme(conc ~ SSbiexp(time, a, f, b, s), d, fixed = a + f + b + s ~ 1,
       random = list(Subject = pdDiag(a + f + b ~ 1)), start = c(2.8, 0.8, 0.5, -1.3), method = "ML",
       control = loose),
  c("a1", "log rate1", "a2", "log rate2"), c("a1", "log rate1", "a2"), "residual sd", FALSE))
d <- as.data.frame(Theoph); d$Subject <- as.character(d$Subject)
told("Theoph", rows(d, "Subject", "Time", "conc", dose = d$Dose), of_nlme(
  nlme(conc ~ SSfol(Dose, Time, lKe, lKa, lCl), d, fixed = lKa + lCl + lKe ~ 1,
       random = list(Subject = pdDiag(lKa + lCl ~ 1)), start = c(0.46, -3.2, -2.45), method = "ML",
       control = loose),
  c("log ka", "log cl", "log ke"), c("log ka", "log cl"), "residual sd", FALSE))
write.csv(fits, file.path(folder, "fits.csv"), row.names = FALSE)
