//! Comparisons that must be red, and one that must not be: a dead gate is noticed here.

use std::fs;

use samebits::contract::{Dtype, Order};
use samebits_fixtures::{paths, prompt_ids};

use super::{CheckError, Measure, Outcome};
use crate::compare::{Comparison, at, compare_rows};
use crate::context::{Context, data};
use crate::engine::{Setup, trace};
use crate::manifest::{Bird, Gate, ManifestError, Plant};
use crate::sites::Dims;

/// Ids of the prompt.
const PROMPT: usize = 9;

fn deaf(plant: &Plant) -> Result<(), CheckError> {
    match plant {
        Plant::Material(what) if what == "deaf" => Ok(()),
        _ => Err(CheckError::NoPlace { id: plant.id().to_owned() }),
    }
}

/// 1 where the inner check was silent.
fn silent(caught: bool, text: &str) -> Outcome {
    let found = Comparison {
        compared: 1,
        differing: u64::from(!caught),
        nonfinite: 0,
        first: (!caught).then(|| {
            let mut first = at("canary", None);
            first.text = text.to_owned();
            first
        }),
    };
    Outcome { statistic: "canaries_silent", ..Outcome::bitwise(found, 1) }
}

/// Listens to a bird.
pub fn prepare<'c>(ctx: &'c Context, bird: Bird) -> Result<Measure<'c>, CheckError> {
    let model = ctx.load(&paths::tiny_qwen3(), Dtype::Bf16)?;
    let dims = Dims::of_shape(&model.shape);
    let ids = prompt_ids(ctx.seed, dims.vocab, PROMPT);
    let setup = Setup::new(Order::Invariant, "canary");
    let run = move |plant: Option<&Plant>| {
        Ok::<_, CheckError>(
            trace(&model, &setup, std::slice::from_ref(&ids), plant)?.sequences.remove(0),
        )
    };
    Ok(match bird {
        Bird::FlippedBit => Box::new(move |plant| {
            plant.map(deaf).transpose()?;
            let flip = Plant::Defect("flip-bit-low".to_owned());
            let planted = if plant.is_some() { None } else { Some(&flip) };
            let found = compare_rows(&run(None)?, &run(planted)?, PROMPT);
            let first = found.first.as_ref().map(|f| (f.op.as_str(), f.layer, f.ulps));
            // One flipped bit shows where it is, as one unit in the last place.
            Ok(silent(first == Some(("down_proj", Some(0), Some(1))), &format!("saw {first:?}")))
        }),
        Bird::NullDefect => Box::new(move |plant| {
            let null = Plant::Defect("null".to_owned());
            let found = compare_rows(&run(None)?, &run(Some(plant.unwrap_or(&null)))?, PROMPT);
            Ok(Outcome::bitwise(found, dims.elements(PROMPT, PROMPT)))
        }),
        Bird::EmptySuite => Box::new(move |plant| {
            plant.map(deaf).transpose()?;
            let folder = tempfile::tempdir().map_err(CheckError::io(&std::env::temp_dir()))?;
            if plant.is_some() {
                let name = "canary+flipped-bit.json";
                let to = folder.path().join(name);
                fs::copy(data("manifest").join(name), &to).map_err(CheckError::io(&to))?;
            }
            let refused = matches!(Gate::all(folder.path()), Err(ManifestError::Empty { .. }));
            Ok(silent(refused, "a suite without gates was taken for one"))
        }),
    })
}
