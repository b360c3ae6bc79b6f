//! Runners with one fault each, by the names of the catalogue.
//!
//! The invariant: a fault replaces one function of the real runner by one that calls it, or its
//! parts, and is wrong in the way its entry says and in no other.

mod judgement;
mod looking;
mod numbers;
mod reports;

use super::Runner;

/// What makes a runner faulty.
pub type Planting = fn(&mut Runner);

/// The fault called `id`.
pub fn plant(id: &str) -> Option<Planting> {
    let all = [judgement::ALL, looking::ALL, numbers::ALL, reports::ALL];
    all.into_iter().flatten().find(|(name, _)| *name == id).map(|(_, planting)| *planting)
}

/// Names of all faults that can be planted.
#[cfg(test)]
pub fn names() -> impl Iterator<Item = &'static str> {
    let all = [judgement::ALL, looking::ALL, numbers::ALL, reports::ALL];
    all.into_iter().flatten().map(|(name, _)| *name)
}
