//! Seeded faults as decorators around the engine's seams.
