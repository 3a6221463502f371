"""Steps of SFT or DPO with TRL's trainers, without gradient checkpointing. bf16 is the trainer's autocast."""

import tempfile
import time
import warnings

import transformers
import trl
from datasets import Dataset
from transformers import TrainerCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

import qwen
from rows import LENGTH, SEQUENCES, batch, rows, tokenizer
from workloads import SHAPES, arguments, report

given = arguments("--method")
shape = SHAPES["S"]
steps = given.warm + given.steps
warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()


class Clock(TrainerCallback):
    """Notes the end of each step: differences contain the preparation of the batch."""

    def __init__(self) -> None:
        self.ends = []

    def on_step_end(self, *_: object, **__: object) -> None:
        self.ends.append(time.perf_counter())


trainers = {"sft": (SFTTrainer, SFTConfig), "dpo": (DPOTrainer, DPOConfig)}
of, config = trainers[given.method]
clock = Clock()
with tempfile.TemporaryDirectory() as folder:
    args = config(
        output_dir=folder,
        use_cpu=True,
        bf16=given.dtype == "bf16",
        per_device_train_batch_size=batch(given.method),
        max_steps=steps,
        max_length=None,
        learning_rate=1e-5,
        optim="adamw_torch_fused",
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = of(
        model=qwen.model("S"),
        args=args,
        train_dataset=Dataset.from_list(rows(given.method, shape, steps)),
        processing_class=tokenizer(shape),
        callbacks=[clock],
        **({"ref_model": qwen.model("S")} if given.method == "dpo" else {}),
    )
    prepared = trainer.get_train_dataloader()
    sizes = {tuple(value["input_ids"].shape) for value in prepared}
    assert sizes == {(SEQUENCES, LENGTH)}, f"batches of {sizes}"
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
assert trainer.state.global_step == len(clock.ends) == steps, trainer.state.global_step
assert any((value != before[name]).any() for name, value in trainer.model.state_dict().items()), "no weight changed"
seconds = [after - before for before, after in zip(clock.ends, clock.ends[1:])][given.warm - 1 :]
report(
    seconds,
    SEQUENCES * LENGTH,
    start_mib=qwen.START_MIB,
    parameters=qwen.parameters(trainer.model),
    versions=f"{qwen.VERSIONS}, trl {trl.__version__}",
)
