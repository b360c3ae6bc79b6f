//! An independent reference of Qwen3 in three arithmetics.
