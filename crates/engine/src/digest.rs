//! Digest of a policy's parameters, equal on every engine.

use zerocopy::IntoBytes as _;

/// CRC-32C of the parameters' little-endian f32 bytes, tensor after tensor in [`digest_order`].
#[derive(Debug, Clone, Copy, Default)]
pub struct WeightDigest {
    crc: u32,
}

impl WeightDigest {
    /// Adds values of the next tensor.
    pub fn update(&mut self, values: &[f32]) {
        if cfg!(target_endian = "little") {
            return self.update_bytes(values.as_bytes());
        }
        for value in values {
            self.update_bytes(&value.to_le_bytes());
        }
    }

    /// Adds values of the next tensor as little-endian bytes.
    pub fn update_bytes(&mut self, bytes: &[u8]) {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
    }

    /// Adds values whose own digest is `next`, and which are this many bytes: pieces can be digested on several threads.
    pub fn append(&mut self, next: Self, bytes: usize) {
        self.crc = crc32c::crc32c_combine(self.crc, next.crc, bytes);
    }

    /// Digest of the values so far.
    pub fn value(self) -> u64 {
        u64::from(self.crc)
    }
}

/// Tensors of a layer in the order of the digest.
const LAYER: [&str; 15] = [
    "input_layernorm.weight",
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.q_proj.bias",
    "self_attn.k_proj.bias",
    "self_attn.v_proj.bias",
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
    "self_attn.o_proj.weight",
    "self_attn.o_proj.bias",
    "post_attention_layernorm.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
];

/// Tensors of a layer's adapter in the order of the digest, without the prefix of PEFT's names.
const ADAPTER: [&str; 14] = [
    "self_attn.q_proj.lora_A.weight",
    "self_attn.k_proj.lora_A.weight",
    "self_attn.v_proj.lora_A.weight",
    "self_attn.q_proj.lora_B.weight",
    "self_attn.k_proj.lora_B.weight",
    "self_attn.v_proj.lora_B.weight",
    "self_attn.o_proj.lora_A.weight",
    "self_attn.o_proj.lora_B.weight",
    "mlp.gate_proj.lora_A.weight",
    "mlp.up_proj.lora_A.weight",
    "mlp.gate_proj.lora_B.weight",
    "mlp.up_proj.lora_B.weight",
    "mlp.down_proj.lora_A.weight",
    "mlp.down_proj.lora_B.weight",
];

/// Sort key of a tensor's Hugging Face name, or of an adapter's tensor by PEFT's name: the order in which tensors enter the digest. Other tensors of a layer
/// follow the listed ones by name, and other tensors of the model come last by name.
pub fn digest_order(name: &str) -> impl Ord + use<'_> {
    let of_adapter = name.strip_prefix("base_model.model.");
    let (own, known) = of_adapter.map_or((name, &LAYER[..]), |own| (own, &ADAPTER[..]));
    let layer = own.strip_prefix("model.layers.").and_then(|rest| {
        let (layer, tensor) = rest.split_once('.')?;
        let position = known.iter().position(|known| *known == tensor).unwrap_or(known.len());
        Some((layer.parse::<usize>().ok()?, position))
    });
    let section = match own {
        "model.embed_tokens.weight" => 0,
        _ if layer.is_some() => 1,
        "model.norm.weight" => 2,
        _ if own.starts_with("lm_head.") => 3,
        "score.weight" => 4,
        "score.bias" => 5,
        _ => 6,
    };
    (section, layer, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_and_bytes_give_the_digest_of_the_whole() {
        let values: Vec<f32> = (0..3000).map(|i| i as f32 / 7.0).collect();
        let mut whole = WeightDigest::default();
        whole.update(&values);
        let mut pieces = WeightDigest::default();
        pieces.update(&values[..1025]);
        let bytes: Vec<u8> = values[1025..].iter().flat_map(|value| value.to_le_bytes()).collect();
        pieces.update_bytes(&bytes);
        assert_eq!(whole.value(), pieces.value());
        let mut appended = WeightDigest::default();
        for piece in [&values[..7], &[], &values[7..2000], &values[2000..]] {
            let mut next = WeightDigest::default();
            next.update(piece);
            appended.append(next, size_of_val(piece));
        }
        assert_eq!(whole.value(), appended.value());
        // CRC-32C of "123456789", the check value of its definition.
        let mut check = WeightDigest::default();
        check.update_bytes(b"123456789");
        assert_eq!(check.value(), 0xe306_9283);
    }

    #[test]
    fn layers_are_ordered_by_number_and_unknown_tensors_come_last() {
        let mut names = [
            "visual.patch.weight",
            "lm_head.weight",
            "model.norm.weight",
            "model.layers.10.input_layernorm.weight",
            "model.layers.2.mlp.extra.weight",
            "model.layers.2.mlp.down_proj.weight",
            "model.embed_tokens.weight",
        ];
        names.sort_by(|a, b| digest_order(a).cmp(&digest_order(b)));
        assert_eq!(
            names,
            [
                "model.embed_tokens.weight",
                "model.layers.2.mlp.down_proj.weight",
                "model.layers.2.mlp.extra.weight",
                "model.layers.10.input_layernorm.weight",
                "model.norm.weight",
                "lm_head.weight",
                "visual.patch.weight",
            ]
        );
    }
}
