//! The kinds of gates, with the sentence that says what a kind proves.
//!
//! The list is closed: a report with another kind is refused.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Variant, name, sentence: said once, for the enum, the files and the tables.
macro_rules! kinds {
    ($($kind:ident $name:literal $proves:literal;)+) => {
        /// What a gate compares, and against what. Spelled in snake case in every file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Kind {
            $(#[doc = $proves] #[serde(rename = $name)] $kind,)+
        }

        impl Kind {
            /// Every kind, in the order of the README's table.
            pub const ALL: &[Kind] = &[$(Kind::$kind),+];

            /// The name in files and on the command line.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$kind => $name,)+ }
            }

            /// What a green gate of this kind proves: one clause, for a table.
            pub fn proves(self) -> &'static str {
                match self { $(Kind::$kind => $proves,)+ }
            }
        }
    };
}

kinds! {
    Determinism "determinism" "fresh processes give the same bits";
    Bitwise "bitwise" "every compared element has the bits of the reference";
    Invariance "invariance" "batch, chunk, cache, threads and storage change no bit";
    Residual "residual" "errors against f64 stay within those of legal summation orders";
    RmsnormContract "rmsnorm_contract" "RMSNorm rounds where the contract says, nowhere else";
    Admission "admission" "unsupported or damaged checkpoints are refused, others run";
    Allocator "allocator" "a decode step allocates nothing";
    HostSync "host_sync" "a decode step waits for the device only where it says so";
    Sampling "sampling" "sampling repeats by seed and follows its distribution";
    Poison "poison" "no byte is read that was not written";
    MathPath "math_path" "canonical products take no reduced-precision path";
    Order "order" "a kernel sums in the order of the contract";
    Kill "kill" "seeded faults are caught, legal variants are not";
    Speed "speed" "speed holds beyond the noise of the machine";
    Tidy "tidy" "the rules of the house hold in the source";
    Swarm "swarm" "random shapes and runs have the bits of the contract";
    Canary "canary" "a check that must be red is red";
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
