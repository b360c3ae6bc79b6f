//! Bytes as a `config.json`: a parser that never panics, and refusals of one line.
//!
//! What is admitted holds what a forward pass divides by and slices with.
#![no_main]

use libfuzzer_sys::fuzz_target;
use samebits::checkpoint::Config;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Config::parse(text) {
        Ok(config) => {
            let sizes = [
                config.hidden_size,
                config.num_hidden_layers,
                config.num_attention_heads,
                config.num_key_value_heads,
                config.head_dim,
                config.intermediate_size,
                config.vocab_size,
                config.max_position_embeddings,
            ];
            assert!(sizes.iter().all(|size| *size > 0), "{sizes:?}");
            assert_eq!(config.num_attention_heads % config.num_key_value_heads, 0);
            assert!(config.rope_theta.is_finite() && config.rope_theta > 0.0);
            assert!(config.notices.iter().all(|line| one_line(line)), "{:?}", config.notices);
            assert_eq!(Config::parse(text).expect("it was admitted").notices, config.notices);
        }
        Err(error) => assert!(one_line(&error.to_string()), "{error}"),
    }
});

fn one_line(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(char::is_control)
}
