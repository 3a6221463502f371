//! Saves a model together with its logits, for `tests/golden/open_in_transformers.py` to compare.
//!
//! ```text
//! resave policy SOURCE FOLDER   # SOURCE is a model folder, or llama | qwen2 | qwen3 for a new random model
//! resave critic SOURCE FOLDER   # SOURCE is a critic's folder, or as above for a new critic of such a model
//! resave reward SOURCE FOLDER   # a reward model of completions, and of steps with `process`, on a new random model
//! ```

use std::error::Error;
use std::path::Path;

use rloom_model::{GenerationConfig, Model, NewModel, OutputHeads, PackedTokens, ScoreRows};
use rloom_ops::Ctx;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, source, folder] = arguments.as_slice() else {
        return Err("usage: resave policy|critic|reward|process SOURCE FOLDER".into());
    };
    let model = match (kind.as_str(), source.as_str()) {
        ("policy", "llama" | "qwen2" | "qwen3") => new(source)?,
        ("critic", "llama" | "qwen2" | "qwen3") => new(source)?.to_critic(),
        ("reward", family) => with_random_head(&new(family)?.to_reward())?,
        ("process", family) => with_random_head(&new(family)?.to_process_reward())?,
        ("critic", path) => Model::load_critic(Path::new(path))?,
        (_, path) => Model::load(Path::new(path))?,
    };
    let folder = Path::new(folder);
    std::fs::create_dir_all(folder)?;
    model.save(folder, &GenerationConfig::new(Some(1), vec![2], Some(0)))?;

    let vocabulary = model.config().vocab_size as u32;
    let tokens: Vec<u32> = (0..40).map(|i| (i * 37 + 5) % vocabulary).collect();
    let batch = PackedTokens { tokens: &tokens, seq_starts: &[0, 40], parents: &[] };
    let numbers = if model.config().output_heads.language() {
        let rows: Vec<u32> = (0..40).collect();
        model.logits(&Ctx::serial(), &batch, &rows)?
    } else {
        let rows: Vec<u32> = (1..40).collect();
        let rows = ScoreRows { rows: &rows, inv_temperature: &[1.0; 39] };
        let scores = model.score(&Ctx::serial(), &batch, &rows)?;
        [scores.value, scores.last_value].concat()
    };
    let text = serde_json::json!({ "tokens": tokens, "logits": numbers }).to_string();
    std::fs::write(folder.join("logits.json"), text)?;
    Ok(())
}

fn new(family: &str) -> Result<Model, Box<dyn Error>> {
    let new: NewModel = serde_json::from_value(serde_json::json!({
        "family": family, "layers": 2, "hidden_size": 48, "heads": 6, "kv_heads": 2, "intermediate_size": 80,
        "max_positions": 64, "initializer_range": 0.3,
    }))?;
    Ok(Model::init(&new.config(70)?, 1))
}

/// The same model with a value head that is not zero, by way of a folder.
fn with_random_head(model: &Model) -> Result<Model, Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("rloom-resave-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    model.save(&folder, &GenerationConfig::default())?;
    let path = folder.join("model.safetensors");
    let mut bytes = std::fs::read(&path)?;
    let header = u64::from_le_bytes(bytes[..8].try_into()?) as usize;
    let names: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header])?;
    for (spec, _) in model.named_tensors().filter(|(spec, _)| spec.is_value_head()) {
        let start = names[&spec.name]["data_offsets"][0].as_u64().ok_or("no offset")? as usize;
        for i in 0..spec.len() {
            let value = ((i * 37 + 11) % 64) as f32 / 64.0 - 0.5;
            bytes[8 + header + start + 4 * i..][..4].copy_from_slice(&value.to_le_bytes());
        }
    }
    std::fs::write(&path, bytes)?;
    let model = match model.config().output_heads {
        OutputHeads::Reward => Model::load_reward(&folder)?,
        _ => Model::load_process_reward(&folder)?,
    };
    std::fs::remove_dir_all(&folder)?;
    Ok(model)
}
