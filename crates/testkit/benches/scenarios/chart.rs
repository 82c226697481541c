//! A picture of the ratios: a bar for each promise, as long as the part of the peer's time we take.

use std::fmt::Write;

use crate::measured::Measured;
use crate::scenario::Promise;

const WIDTH: f64 = 990.0;
const LABELS: f64 = 560.0;
const LINE: f64 = 26.0;

/// Draws every ratio that something is promised about.
pub(crate) fn draw(all: &[Measured]) -> String {
    let mut bars = Vec::new();
    for measured in all {
        for promise in measured.scenario.promises {
            let Promise::Times(bound, peer) = promise else { continue };
            if let Some(ratio) = measured.ratio(*peer) {
                bars.push((measured.scenario.title, peer.name(), ratio.of_medians, *bound));
            }
        }
    }
    let height = LINE * (bars.len() as f64) + 40.0;
    // Beyond twice the peer's time a bar is cut off; its number says the rest.
    let scale = (WIDTH - LABELS - 90.0) / 2.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/>\n"
    );
    for (number, (title, peer, ratio, bound)) in bars.iter().enumerate() {
        let top = LINE * (number as f64) + 8.0;
        let base = top + 14.0;
        let width = (ratio.min(2.0) * scale).max(1.0);
        let colour = if ratio <= bound { "#2a7f62" } else { "#b3541e" };
        // Writing to a string does not fail.
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{base}\" text-anchor=\"end\">{} / {peer}</text>\
             <rect x=\"{LABELS}\" y=\"{top}\" width=\"{width:.1}\" height=\"18\" \
             fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{base}\">{ratio:.3} ×</text>",
            LABELS - 8.0,
            escape(title),
            LABELS + width + 6.0
        );
    }
    let end = height - 30.0;
    let one = LABELS + scale;
    let _ = writeln!(
        svg,
        "<line x1=\"{one}\" y1=\"4\" x2=\"{one}\" y2=\"{end}\" stroke=\"#888\" \
         stroke-dasharray=\"4 3\"/><text x=\"{one}\" y=\"{}\" text-anchor=\"middle\">the peer's \
         time</text>\n</svg>",
        end + 18.0
    );
    svg
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('`', "")
}
