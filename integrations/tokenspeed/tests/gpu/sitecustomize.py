"""Stands in, in each process of a GPU machine, for packages that TokenSpeed imports and that a Hopper GPU's plain transformer never calls."""

from absent import stand_in

stand_in(
    *(
        "deep_ep",
        "deep_gemm",
        "fast_hadamard_transform",
        "flash_attn_interface",
        "flash_kda",
        "flash_mla",
        "trtllm_kernel",
    ),
    *("cutlass", "viztracer"),
    *(
        f"flashinfer.{part}"
        for part in (
            *(
                "attention",
                "attn_scores",
                "cake_dcp",
                "cake_fmha",
                "cake_minimax_h3",
                "cake_sampling",
                "comm",
                "cute_dsl",
                "fused_moe",
            ),
            *(
                "gated_act_mxfp8",
                "gdn2_prefill",
                "gdn_decode",
                "gdn_kernels",
                "gdn_prefill",
                "gdp_prefill",
                "gemm",
                "grouped_mm",
            ),
            *("kda", "kda_decode", "kda_prefill", "mla", "nvfp4_attention_sm120", "pod", "sparse", "topk_varlen"),
            *("trtllm_low_latency_gemm", "xqa"),
        )
    ),
)
