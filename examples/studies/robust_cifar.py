"""Do adversarial and mixed views make better and more robust features? IntNaCl's comparison on CIFAR.

HCL is IntNaCl without its additions (M = 1, alpha = 0, estimator g2). The other rows add several positives (NCA),
mixtures (MixNCA), adversarial views (IntCL), and all of these (IntNaCl). FGSM and PGD attack a linear probe on frozen
features through the encoder (PGD: step .01, 10 iterations, 2 restarts, as in the paper).

Every row chooses among four settings by clean accuracy on validation images, and seeds are paired; see
`lightly_cifar.py` for details, sizes and data. The paper uses ResNet-18 after 100 epochs on CIFAR-100, as does *paper*,
and epsilon .002; .004 is about one grey level. *small* can show what attacks cost and whether adversarial views reduce
that cost; it cannot resolve differences of a point.

examples:
  python examples/studies/robust_cifar.py --size smoke
  COUNTERPOINT_DATA=... python examples/studies/robust_cifar.py --size small --jobs 2
  python examples/studies/robust_cifar.py --size paper --device cuda
"""

from __future__ import annotations

from grids import AGAIN
from lightly_cifar import SIZES, SMALL, Setting, Size, main_of

TEMPERATURES = (0.2, 0.3, 0.5, 1.0)
ROWS: dict[str, list[Setting]] = {
    "HCL (M=1)": [f"hcl:t={t},prior=0.01,beta=1" for t in TEMPERATURES],
    "NCA, M=2": [(f"nca:t={t},g=g2", {"views": 3}) for t in TEMPERATURES],
    "MixNCA, M=2": [(f"mixnca:t={t},g=g2,lam={lam}", {"mixed": 1}) for t in (0.2, 0.5) for lam in (0.5, 0.9)],
    "IntCL": [f"intcl:t={t}" for t in TEMPERATURES],
    "IntNaCl, MixNCA, M=2": [
        (f"intnacl:t={t},base=mixnca,lam={lam}", {"mixed": 1}) for t in (0.2, 0.5) for lam in (0.5, 0.9)
    ],
}
ROWS["HCL (M=1)" + AGAIN] = ROWS["HCL (M=1)"]
STUDY = {
    **SIZES,
    "small": Size("cifar10", 5, 3, {**SMALL, "subset": 4000, "epochs": 6}),
    "paper": Size("cifar100", 5, 1, {**SIZES["paper"].settings, "lr": 3e-4}),
}

if __name__ == "__main__":
    main_of(
        __doc__,
        STUDY,
        ROWS,
        ("linear", "fgsm@0.002", "pgd@0.002", "pgd@0.004"),
        ("linear", "robust"),
        {"epsilons": [0.002, 0.004], "attacked": 1000},
        {name: ("cifar100", name) for name in ("linear", "fgsm@0.002")},
    )
