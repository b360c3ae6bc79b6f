//! The kill matrix as a heat map: a row a defect, a column a gate, darker for a larger margin.
//!
//! Absent: scores. The invariant: a cell that nobody asked looks unlike one that passed.

use std::fmt::Write as _;

use super::{Cell, Matrix};

/// Side of a cell, and the room for names.
const SIDE: usize = 11;
const LEFT: usize = 230;
const TOP: usize = 215;
/// What each colour means, in the order of the legend.
const LEGEND: [(&str, &str); 6] = [
    ("#990000", "caught, 1,000 times the limit and more"),
    ("#e06666", "caught, 10 times and more"),
    ("#f6b26b", "caught"),
    ("#d9ead3", "passed"),
    ("#ffffff", "not asked, or never reached"),
    ("#000000", "ended the engine"),
];

/// The matrix as an SVG document: tolerance gates first, defects by class.
pub fn kill_svg(matrix: &Matrix) -> String {
    let mut gates: Vec<(&str, bool)> = matrix.gates.iter().map(|(g, t)| (g.as_str(), *t)).collect();
    gates.sort_by_key(|(gate, tolerant)| (!tolerant, *gate));
    let mut rows: Vec<_> = matrix.rows.iter().filter(|row| !row.cells.is_empty()).collect();
    rows.sort_by_key(|row| (row.class == 0, row.class));
    let legend = TOP + rows.len() * SIDE + 20;
    let (width, height) = (LEFT + gates.len() * SIDE + 8, legend + LEGEND.len() * 14 + 8);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"9\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"4\" y=\"14\" font-size=\"12\">class, defect / gate (tolerance gates first)\
         </text>\n"
    );
    // Writing to a string cannot fail.
    for (x, (gate, tolerant)) in gates.iter().enumerate() {
        let (x, y) = (LEFT + x * SIDE + SIDE - 2, TOP - 4);
        let weight = if *tolerant { "bold" } else { "normal" };
        let _ = writeln!(
            svg,
            "<text transform=\"translate({x},{y}) rotate(-90)\" font-weight=\"{weight}\">{gate}\
             </text>"
        );
    }
    for (y, row) in rows.iter().enumerate() {
        let top = TOP + y * SIDE;
        let class = if row.class == 0 { "-".to_owned() } else { row.class.to_string() };
        let _ = writeln!(svg, "<text x=\"4\" y=\"{}\">{class} {}</text>", top + 9, row.id);
        for (x, (gate, _)) in gates.iter().enumerate() {
            let fill = row.cells.get(*gate).map_or("#ffffff", shade);
            let left = LEFT + x * SIDE;
            let _ = writeln!(
                svg,
                "<rect x=\"{left}\" y=\"{top}\" width=\"{SIDE}\" height=\"{SIDE}\" \
                 fill=\"{fill}\" stroke=\"#dddddd\"/>"
            );
        }
    }
    for (i, (fill, meaning)) in LEGEND.iter().enumerate() {
        let y = legend + i * 14;
        let _ = writeln!(
            svg,
            "<rect x=\"4\" y=\"{y}\" width=\"10\" height=\"10\" fill=\"{fill}\" \
             stroke=\"#999999\"/><text x=\"20\" y=\"{}\">{meaning}</text>",
            y + 9
        );
    }
    svg + "</svg>\n"
}

fn shade(cell: &Cell) -> &'static str {
    let colour = |i: usize| LEGEND[i].0;
    match cell {
        Cell::NotReached | Cell::Unviable => colour(4),
        Cell::Crash => colour(5),
        Cell::Measured { red: false, .. } => colour(3),
        Cell::Measured { margin, .. } if margin.0 < 10.0 => colour(2),
        Cell::Measured { margin, .. } if margin.0 < 1_000.0 => colour(1),
        Cell::Measured { .. } => colour(0),
    }
}
