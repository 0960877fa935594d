//! Small charts as SVG, drawn by the server.

use maud::{Markup, html};

/// Returns a line of values from 0 on, the newest at the right, with a description for people who do not see
/// it.
pub(super) fn line(values: &[f64], about: &str) -> Markup {
    const WIDTH: f64 = 240.0;
    const HEIGHT: f64 = 40.0;
    let top = values.iter().copied().fold(1.0, f64::max);
    let step = WIDTH / 119.0;
    let start = WIDTH - step * values.len().saturating_sub(1) as f64;
    let point = |(index, value): (usize, &f64)| {
        format!("{:.1},{:.1}", start + step * index as f64, HEIGHT - 1.0 - value / top * (HEIGHT - 2.0))
    };
    let points: Vec<String> = values.iter().enumerate().map(point).collect();
    let points = points.join(" ");
    html! {
        svg.line viewBox="0 0 240 40" preserveAspectRatio="none" role="img" aria-label=(about) {
            @if values.len() > 1 {
                polygon points=(format!("{start:.1},40 {points} 240,40")) {}
                polyline points=(points) {}
            }
        }
    }
}

/// Returns a bar that is filled up to `part` of `whole`.
pub(super) fn meter(part: u64, whole: u64, about: &str) -> Markup {
    let percent = if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 };
    html! {
        svg.meter viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label=(about) {
            rect.whole width="100" height="4" {}
            rect.part width=(format!("{percent:.1}")) height="4" {}
        }
    }
}

/// A bar of a chart of times: start and end, from 0 to 1, the number of its colour, and the text about it.
pub(super) struct Bar {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) colour: usize,
    pub(super) about: String,
}

/// Returns a row of bars.
pub(super) fn bars(bars: &[Bar]) -> Markup {
    let about: Vec<&str> = bars.iter().map(|bar| bar.about.as_str()).collect();
    html! {
        svg.bars viewBox="0 0 1000 16" preserveAspectRatio="none" role="img" aria-label=(about.join(", ")) {
            rect.whole width="1000" height="16" {}
            @for bar in bars {
                rect class={ "c" (bar.colour % 8) } x=(format!("{:.1}", bar.from * 1000.0)) height="16"
                    width=(format!("{:.1}", ((bar.to - bar.from) * 1000.0).max(1.5))) {
                    title { (bar.about) }
                }
            }
        }
    }
}
