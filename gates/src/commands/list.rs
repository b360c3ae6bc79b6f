//! `gates list` and `gates explain`.

use std::io::Write;
use std::path::PathBuf;

use super::Failure;
use crate::context::data;
use crate::limits::Limits;
use crate::manifest::{Gate, Lane};

/// Arguments of `list`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only gates whose id holds this.
    filter: Option<String>,
    /// A folder of gates in the place of the project's own.
    #[arg(long, value_name = "DIR")]
    manifests: Option<PathBuf>,
}

/// Arguments of `explain`.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// The gate.
    id: String,
    /// A folder of gates in the place of the project's own.
    #[arg(long, value_name = "DIR")]
    manifests: Option<PathBuf>,
}

fn gates(manifests: Option<&PathBuf>) -> Result<Vec<Gate>, Failure> {
    Ok(Gate::all_or_own(manifests.map(PathBuf::as_path))?)
}

fn lane(gate: &Gate) -> &'static str {
    match gate.lane {
        Lane::Default => "default",
        Lane::Long => "long",
    }
}

/// One line a gate: id, lane, why.
pub fn list(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let gates = gates(args.manifests.as_ref())?;
    let filter = args.filter.as_deref().unwrap_or_default();
    for gate in gates.iter().filter(|gate| gate.id.contains(filter)) {
        writeln!(out, "{:<44} {:<8} {}", gate.id, lane(gate), gate.why)?;
    }
    Ok(0)
}

/// Everything the manifest and the limits say of one gate.
pub fn explain(args: &ExplainArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let gates = gates(args.manifests.as_ref())?;
    let Some(gate) = gates.iter().find(|gate| gate.id == args.id) else {
        let near: Vec<&str> =
            gates.iter().map(|g| g.id.as_str()).filter(|id| id.contains(&args.id)).collect();
        let hint = if near.is_empty() { "see gates list".to_owned() } else { near.join(", ") };
        return Err(Failure::Usage(format!("no gate is called {}: {hint}", args.id)));
    };
    writeln!(out, "{}\n\n  kind     {}: {}", gate.id, gate.kind, gate.kind.proves())?;
    writeln!(out, "  why      {}", gate.why)?;
    writeln!(out, "  does     {:?}", gate.check)?;
    let control = &gate.control;
    let first = control.first.as_deref().map_or(String::new(), |op| format!(", first at {op}"));
    writeln!(out, "  control  {}{first}", control.plant.id())?;
    if let Ok(defect) = samebits_defects::Defect::find(control.plant.id()) {
        writeln!(out, "           {}: {}", defect.strength, defect.why)?;
    }
    match &gate.limit {
        None => writeln!(out, "  limit    none: no difference at all is allowed")?,
        Some(name) => {
            let limits = Limits::load(&data("limits.json"))?;
            let limit = limits.get(name)?;
            writeln!(
                out,
                "  limit    {} {} ({}, {name})",
                limit.statistic, limit.value, limit.dtype
            )?;
            writeln!(out, "           {}", limit.provenance)?;
        }
    }
    writeln!(out, "  lane     {}", lane(gate))?;
    Ok(0)
}
