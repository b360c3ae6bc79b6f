//! Gates: data-driven checks of the engine, their runner and its binary.
