"""The one table of formats that hotset computes with; kernels, tests and `inspect` read it."""

from __future__ import annotations

from hotset.quant.bf16 import BF16
from hotset.quant.f16 import F16
from hotset.quant.f32 import F32
from hotset.quant.iq1_m import IQ1_M
from hotset.quant.iq1_s import IQ1_S
from hotset.quant.iq2_s import IQ2_S
from hotset.quant.iq2_xs import IQ2_XS
from hotset.quant.iq2_xxs import IQ2_XXS
from hotset.quant.iq3_s import IQ3_S
from hotset.quant.iq3_xxs import IQ3_XXS
from hotset.quant.iq4_nl import IQ4_NL
from hotset.quant.iq4_xs import IQ4_XS
from hotset.quant.layout import QuantFormat
from hotset.quant.mxfp4 import MXFP4
from hotset.quant.nvfp4 import NVFP4
from hotset.quant.q2_k import Q2_K
from hotset.quant.q3_k import Q3_K
from hotset.quant.q4_0 import Q4_0
from hotset.quant.q4_1 import Q4_1
from hotset.quant.q4_k import Q4_K
from hotset.quant.q5_0 import Q5_0
from hotset.quant.q5_1 import Q5_1
from hotset.quant.q5_k import Q5_K
from hotset.quant.q6_k import Q6_K
from hotset.quant.q8_0 import Q8_0
from hotset.quant.tq1_0 import TQ1_0
from hotset.quant.tq2_0 import TQ2_0

FORMATS: dict[int, QuantFormat] = {
    fmt.ggml_type: fmt
    for fmt in (
        *(F32, F16, BF16),
        *(Q4_0, Q4_1, Q5_0, Q5_1, Q8_0),
        *(Q2_K, Q3_K, Q4_K, Q5_K, Q6_K),
        *(MXFP4, NVFP4, IQ4_NL, IQ4_XS),
        *(TQ1_0, TQ2_0),
        *(IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S),
    )
}
