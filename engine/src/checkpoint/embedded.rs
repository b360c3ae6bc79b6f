//! Models that are part of the program: names, and the bytes of their files.

/// Name and bytes of each file of a folder.
pub(super) type Files = &'static [(&'static str, &'static [u8])];

/// The files of a folder of the fixtures.
macro_rules! files {
    ($model:literal: $($file:literal),* $(,)?) => {
        &[$((
            $file,
            include_bytes!(concat!("../../../fixtures/models/", $model, "/", $file)),
        )),*]
    };
}

/// The name of the default model.
pub const EMBEDDED: &str = "tiny-qwen3";

/// The models by name, the default one first: a trained Qwen3 of 1.5 million parameters, and a
/// trained hybrid of 2 million.
pub(super) const MODELS: [(&str, Files); 2] = [
    (
        EMBEDDED,
        files!["tiny-qwen3":
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ],
    ),
    (
        "tiny-qwen3.5",
        files!["tiny-qwen3.5":
            "config.json",
            "generation_config.json",
            "model-00001-of-00003.safetensors",
            "model-00002-of-00003.safetensors",
            "model-00003-of-00003.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "tokenizer_config.json",
        ],
    ),
];
