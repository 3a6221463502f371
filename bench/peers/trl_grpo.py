"""A GRPO step with TRL's trainer: rollout, random rewards, one optimiser step, no KL term, no gradient checkpointing.

bf16 is the trainer's autocast. `--batch N` splits the optimiser step into micro-batches of N completions.
"""

import random
import tempfile
import time
import warnings
from pathlib import Path

import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import qwen
from workloads import GRPO, SHAPES, arguments, prompts, report

given = arguments("--batch")
tasks, samples, prompt, new = GRPO
completions = tasks * samples
micro_batch = int(given.batch or completions)
shape = SHAPES["S"]
steps = given.warm + given.steps
warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()


def tokenizer() -> PreTrainedTokenizerFast:
    """Creates a tokenizer with one word per id. The end of sequence is an id outside the vocabulary, so nothing ends early."""
    words = {f"w{i}": i for i in range(shape.vocabulary)} | {"<end>": shape.vocabulary}
    made = Tokenizer(models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="w0")


scored = []


def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
    """Returns random rewards and checks the workload: the number of completions and their full length."""
    assert len(completion_ids) == completions, len(completion_ids)
    assert all(len(ids) == new for ids in completion_ids), {len(ids) for ids in completion_ids}
    scored.append(len(completion_ids))
    return [random.random() for _ in completion_ids]


class Clock(TrainerCallback):
    """Measures the seconds of each optimiser step, rollout included."""

    def __init__(self) -> None:
        self.begun, self.seconds = 0.0, []

    def on_step_begin(self, *_: object, **__: object) -> None:
        self.begun = time.perf_counter()

    def on_step_end(self, *_: object, **__: object) -> None:
        self.seconds.append(time.perf_counter() - self.begun)


texts = [" ".join(f"w{i}" for i in ids) for ids in prompts(shape, tasks * steps, prompt)]
clock = Clock()
with tempfile.TemporaryDirectory() as folder:
    config = GRPOConfig(
        output_dir=str(Path(folder)),
        use_cpu=True,
        bf16=given.dtype == "bf16",
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=completions // micro_batch,
        num_generations=samples,
        num_iterations=1,
        max_completion_length=new,
        max_steps=steps,
        beta=0.0,
        temperature=1.0,
        learning_rate=1e-5,
        optim="adamw_torch_fused",
        gradient_checkpointing=False,
        shuffle_dataset=False,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=qwen.model("S"),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": texts}),
        processing_class=tokenizer(),
        callbacks=[clock],
    )
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
assert trainer.state.global_step == len(scored) == len(clock.seconds) == steps, (trainer.state.global_step, len(scored))
assert any((value != before[name]).any() for name, value in trainer.model.state_dict().items()), "no weight changed"
# Trained tokens, as RLoom counts them.
report(
    clock.seconds[given.warm :],
    completions * new,
    start_mib=qwen.START_MIB,
    parameters=qwen.parameters(trainer.model),
    versions=f"{qwen.VERSIONS}, trl {trl.__version__}",
)
