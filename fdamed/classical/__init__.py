"""Classical domain adaptation on extracted features, as scikit-learn estimators: one client holds X_S, y_S and X_T.

`fit(X, y, sample_domain)` everywhere; `inputs.py` explains the three.
"""

from fdamed.classical.coral import CORAL
from fdamed.classical.dann import DaNN
from fdamed.classical.gfk import GFK
from fdamed.classical.inputs import OnSource
from fdamed.classical.jda import JDA
from fdamed.classical.tca import RFTCA, RTCA, TCA

__all__ = ["CORAL", "DaNN", "GFK", "JDA", "OnSource", "RFTCA", "RTCA", "TCA"]
