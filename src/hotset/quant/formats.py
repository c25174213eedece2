"""The one table of formats that hotset computes with; kernels, tests and `inspect` read it."""

from __future__ import annotations

from hotset.quant.bf16 import BF16
from hotset.quant.f16 import F16
from hotset.quant.f32 import F32
from hotset.quant.iq4_nl import IQ4_NL
from hotset.quant.iq4_xs import IQ4_XS
from hotset.quant.layout import QuantFormat
from hotset.quant.mxfp4 import MXFP4
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

FORMATS: dict[int, QuantFormat] = {
    fmt.ggml_type: fmt
    for fmt in (
        *(F32, F16, BF16),
        *(Q4_0, Q4_1, Q5_0, Q5_1, Q8_0),
        *(Q2_K, Q3_K, Q4_K, Q5_K, Q6_K),
        *(MXFP4, IQ4_NL, IQ4_XS),
    )
}
