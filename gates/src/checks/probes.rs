//! Glue: kernels on random operands and summation trees as gates.

use rayon::prelude::*;
use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, Kernels};

use super::kernels::{self, Kernel};
use super::{CheckError, Measure, Outcome, order};
use crate::compare::{Comparison, at};
use crate::context::Context;
use crate::manifest::Plant;

/// Every kernel table on random operands, against the scalar table and the reference.
pub fn kernels<'c>(ctx: &'c Context, name: &str, cases: u64) -> Result<Measure<'c>, CheckError> {
    let kernel = Kernel::ALL.into_iter().find(|k| k.name() == name);
    let kernel = kernel.ok_or_else(|| CheckError::missing(name, "the kernels"))?;
    Ok(Box::new(move |plant| {
        let (found, expected) = match plant {
            None => (kernels::check(kernel, cases, ctx.seed), cases),
            Some(Plant::Material(what)) if what == "wrong-bit" => {
                (kernels::control(kernel, ctx.seed), kernels::CONTROL_CASES)
            }
            Some(other) => return Err(CheckError::NoPlace { id: other.id().to_owned() }),
        };
        let mut comparison = Comparison::default();
        (comparison.compared, comparison.differing) = (found.n_compared, found.differing);
        comparison.first = found.first.map(|first| {
            let mut divergence = at(kernel.name(), None);
            divergence.element = Some(first.element as u64);
            divergence.text = first.to_string();
            divergence
        });
        let outcome = Outcome::bitwise(comparison, expected);
        Ok(Outcome { statistic: "cases_differing", ..outcome })
    }))
}

/// The summation tree of every reduction of every kernel table, in both orders.
pub fn trees<'c>(_ctx: &'c Context, dtype: Dtype) -> Result<Measure<'c>, CheckError> {
    let orders = [Order::Invariant, Order::Transformers];
    let each: u64 = orders.iter().map(|o| order::n_expected(dtype, *o)).sum();
    let expected = each * Kernels::supported().len() as u64;
    Ok(Box::new(move |plant| {
        // In the place of the contract's order, the other one: the probes must tell them apart.
        let swap = match plant {
            None => false,
            Some(Plant::Material(what)) if what == "other-order" => true,
            Some(other) => return Err(CheckError::NoPlace { id: other.id().to_owned() }),
        };
        let tables = if swap { vec![Kernels::best()] } else { Kernels::supported() };
        let runs: Vec<(&'static Kernels, usize)> =
            tables.iter().flat_map(|table| [(*table, 0), (*table, 1)]).collect();
        let reveal = |(table, i): &(&'static Kernels, usize)| {
            let ran = orders[if swap { 1 - i } else { *i }];
            (table.name, order::check(&mut Cpu::new(table, ran), dtype, orders[*i]))
        };
        let found: Vec<(&str, order::Outcome)> = runs.par_iter().map(reveal).collect();
        let mut comparison = Comparison::default();
        for (table, found) in found {
            comparison.compared += found.n_compared;
            comparison.differing += found.differences.len() as u64;
            if let (None, Some(first)) = (&comparison.first, found.differences.first()) {
                let mut divergence = at(first.reduction.name(), None);
                divergence.element = Some(first.leaf as u64);
                divergence.text = format!("{table}: {first}");
                comparison.first = Some(divergence);
            }
        }
        Ok(Outcome { statistic: "trees_differing", ..Outcome::bitwise(comparison, expected) })
    }))
}
