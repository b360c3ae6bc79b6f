//! An exact inference engine for Qwen3: the same bits everywhere.
