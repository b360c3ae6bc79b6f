//! Every site of a run against the contract, computed operation by operation by the reference.

use samebits::contract::{Dtype, Order};
use samebits::op::{CONV_STATE, STATE};
use samebits_fixtures::prompt_ids;
use samebits_oracle as oracle;

use super::{CheckError, Measure, Outcome};
use crate::compare::{compare, compare_states};
use crate::context::Context;
use crate::engine::{Setup, rotary_sites, trace};
use crate::manifest::Source;
use crate::sites::{Bits, Dims, Sites, dtype_at, oracle_dtype};

/// Which run.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The run's dtype.
    pub dtype: Dtype,
    /// The order of both.
    pub order: Order,
    /// Ids of the prompt.
    pub prompt: usize,
    /// Further ids through the cache.
    pub steps: usize,
}

/// The reference's name of an order.
pub fn oracle_order(order: Order) -> oracle::Order {
    match order {
        Order::Invariant => oracle::Order::Invariant,
        Order::Transformers => oracle::Order::Transformers,
    }
}

/// All sites of a run in the reference's operation-by-operation arithmetic, and what its last
/// forward leaves in each gated delta net.
pub fn bits(model: &oracle::Model, case: Case, ids: &[u32]) -> Result<[Sites; 2], CheckError> {
    let arithmetic =
        oracle::Bits { order: oracle_order(case.order), dtype: oracle_dtype(case.dtype) };
    let options = oracle::RunOptions {
        keep: oracle::Keep::All,
        decode_from: (case.steps > 0).then_some(case.prompt),
        ..oracle::RunOptions::default()
    };
    Ok(converted(oracle::run(model, &arithmetic, ids, &options)?, case.dtype))
}

/// The sites of a reference's run, and what it leaves in each gated delta net.
pub fn converted(trace: oracle::Trace, dtype: Dtype) -> [Sites; 2] {
    let site = |(name, array): (String, oracle::Array)| {
        let bits = Bits::of_array(&array, dtype_at(&name, dtype));
        (name, bits)
    };
    let states = trace.states.into_iter().flat_map(|(layer, state)| {
        // The engine keeps a convolution's inputs as rows.
        let conv = Bits::of_array(&state.conv, dtype).transposed();
        let delta = Bits::of_array(&state.delta, Dtype::F32);
        let at = |op: &str| format!("layers.{layer}.{op}");
        [(at(CONV_STATE), conv), (at(STATE), delta)]
    });
    [trace.sites.into_iter().map(site).collect(), states.collect()]
}

/// Compares the engine with the contract at every site, the rotary tables included.
pub fn prepare<'c>(
    ctx: &'c Context,
    source: &Source,
    case: Case,
) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(source)?;
    let model = ctx.load_for(folder.path(), case.dtype, case.order)?;
    let reference = ctx.reference(folder.path())?;
    let dims = Dims::of(reference.config());
    let len = case.prompt + case.steps;
    let ids = prompt_ids(ctx.seed, dims.vocab, len);
    let [want, states] = bits(&reference, case, &ids)?;
    let expected = dims.elements(len, len) + dims.carried() + (len * dims.rotary_dim) as u64;
    Ok(Box::new(move |plant| {
        let mut setup = Setup::new(case.order, "engine");
        if case.steps > 0 {
            setup = setup.decode_from(case.prompt, len);
        }
        let traces = trace(&model, &setup, std::slice::from_ref(&ids), plant)?;
        let mut got = traces.sequences[0].clone();
        got.extend(rotary_sites(&model, &setup, len));
        let mut found = compare(&want, &got, &setup.forwards(len));
        found.then(compare_states(&states, &traces.states[0]));
        let outcome = Outcome::bitwise(found, expected);
        Ok(outcome.with_paths(vec![traces.proof]).with_hits(traces.hits))
    }))
}
