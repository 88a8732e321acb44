"""Classical domain adaptation on extracted features, as scikit-learn estimators: one client holds X_S, y_S and X_T.

`fit(X, y, sample_domain)` everywhere; `domains.py` says what the three are.
"""

from fdamed.classical.coral import CORAL
from fdamed.classical.dann import DaNN
from fdamed.classical.gfk import GFK
from fdamed.classical.inputs import OnSource
from fdamed.classical.jda import JDA
from fdamed.classical.rftca import RFTCA
from fdamed.classical.tca import RTCA, TCA

__all__ = ["CORAL", "DaNN", "GFK", "JDA", "OnSource", "RFTCA", "RTCA", "TCA"]
