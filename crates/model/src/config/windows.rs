//! Sliding windows: the fields that give layers one, with the meaning that `transformers` gives them.

use serde_json::{Value, json};

use super::fields::Fields;
use super::{ConfigError, Inconsistency, MOST_LAYERS};
use crate::family::Window;

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// The window of each layer. One that holds the longest sequence is none.
pub(super) fn read(
    fields: Fields<'_>,
    window: Window,
    layers: usize,
    max_positions: usize,
) -> Result<Vec<Option<usize>>, ConfigError> {
    // A larger number of layers is an error later.
    let layers = layers.min(MOST_LAYERS);
    let size = |default: usize| -> Result<Option<usize>, ConfigError> {
        let size = if fields.map.contains_key("sliding_window") {
            fields.count("sliding_window")?
        } else {
            Some(default)
        };
        match size {
            Some(0) => Err(fields.wrong("sliding_window", "at least 1", &json!(0))),
            size => Ok(size.filter(|&size| size < max_positions)),
        }
    };
    match window {
        Window::Never => Ok(vec![None; layers]),
        Window::AllLayers { default } => Ok(vec![size(default)?; layers]),
        Window::SomeLayers { size: default, first_layer } => {
            let is_on = fields.flag("use_sliding_window")? == Some(true);
            let first_layer = fields.count("max_window_layers")?.unwrap_or(first_layer);
            let has_window = match fields.list("layer_types")? {
                Some(types) => listed(fields, types, layers, is_on)?,
                None => (0..layers).map(|layer| layer >= first_layer).collect(),
            };
            let size = if is_on { size(default)? } else { None };
            Ok(has_window.into_iter().map(|has_window| size.filter(|_| has_window)).collect())
        }
    }
}

/// True for each layer of the list that has a window.
fn listed(fields: Fields<'_>, types: &[Value], layers: usize, is_on: bool) -> Result<Vec<bool>, ConfigError> {
    if types.len() != layers {
        return Err(ConfigError::Inconsistent {
            path: fields.path.to_owned(),
            problem: Inconsistency::LayerTypes { types: types.len(), layers },
        });
    }
    let has_window = |kind: &Value| match kind.as_str() {
        Some(FULL) => Ok(false),
        Some(SLIDING) if is_on => Ok(true),
        Some(SLIDING) => Err(fields.unsupported(
            "layer_types",
            kind,
            "the file enables no sliding window",
            "set use_sliding_window to true and sliding_window to a number of tokens, or use full_attention",
        )),
        _ => Err(fields.unsupported(
            "layer_types",
            kind,
            "layers attend to all earlier tokens or to a sliding window",
            "use a model of the Llama, Mistral, Qwen2 or Qwen3 family",
        )),
    };
    types.iter().map(has_window).collect()
}
