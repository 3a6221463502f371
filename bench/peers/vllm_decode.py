"""Greedy decoding with vLLM's offline engine, one request per prompt: --folder FOLDER is the model.

compare.py sets the environment variables that vLLM reads (cores, cache size, no network). `--eager yes` disables compilation.
"""

import os
import time
from importlib.metadata import version

import torch

#: What the processor must not seem to have, by the limit of oneDNN. vLLM asks PyTorch, and so do its worker processes, which
#: import this file first.
HIDDEN = {
    "AVX2": ("avx512", "avx512_bf16", "amx_tile", "amx_fp16"),
    "AVX512_CORE_BF16": ("amx_tile", "amx_fp16"),
}
for name in HIDDEN.get(os.environ.get("ONEDNN_MAX_CPU_ISA", ""), ()):
    setattr(torch.cpu, f"_is_{name}_supported", lambda: False)

from vllm import LLM, SamplingParams

from workloads import SHAPES, arguments, prompts, report, timed

given = arguments("--folder", "--eager")


def main() -> None:
    shape = SHAPES["S"]
    sequences, prompt, new = shape.decode
    begun = time.perf_counter()
    engine = LLM(
        model=given.folder,
        skip_tokenizer_init=True,
        dtype={"f32": "float32", "bf16": "bfloat16"}[given.dtype],
        max_model_len=prompt + new,
        max_num_seqs=sequences,
        enforce_eager=bool(given.eager),
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    started = time.perf_counter() - begun
    requests = [{"prompt_token_ids": ids} for ids in prompts(shape, sequences, prompt)]
    greedy = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False)

    def decode() -> None:
        outputs = engine.generate(requests, greedy, use_tqdm=False)
        assert len(outputs) == sequences
        assert all(len(output.outputs[0].token_ids) == new for output in outputs)

    seconds = timed(given.steps, given.warm, decode)
    # Memory is not reported: the engine and its worker are separate processes.
    report(seconds, sequences * new, startup_seconds=started, versions=f"vllm {version('vllm')}")


if __name__ == "__main__":
    main()
