//! `cargo xtask bench scaling`: shows the purpose of LITE by simulation. Native verbs slow down as regions
//! and memory grow, because a card's caches for its tables are small. One physical key does not slow down,
//! nor does LITE over our driver.

use super::program;
use super::table::Table;
use super::target::{self, Bound, Target};
use crate::output;
use anyhow::{Context, Result};
use clap::Args;
use lab::{interrupt, paths, ui};
use plotters::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Lengths of a WRITE, in bytes.
const SIZES: [u32; 2] = [64, 1024];

/// The simulation's parameters, and the destination of its figures.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// WRITEs of each point
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    writes: u32,
    /// Entries of the emulated card's cache of regions; with more regions in use, it misses [default: 128]
    #[arg(long, value_name = "N")]
    regions_cached: Option<u32>,
    /// Entries of the emulated card's cache of pages; with more pages in use, it misses [default: 1024]
    #[arg(long, value_name = "N")]
    pages_cached: Option<u32>,
    /// Cost of a miss of either cache, in nanoseconds [default: 250]
    #[arg(long, value_name = "NS")]
    miss_ns: Option<u32>,
    /// File for the drawing, as SVG [default: scaling.svg in target/ferrolite]
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// File for the figures, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fails if a target is missed
    #[arg(long)]
    strict: bool,
}

/// The output of the simulation (`connectx3`'s example `scaling`).
#[derive(Debug, Deserialize, Serialize)]
struct Output {
    writes: u32,
    seed: u64,
    engine_ns: u64,
    miss_ns: u64,
    regions_cached: u32,
    pages_cached: u32,
    memory: Vec<Point>,
    regions: Vec<Point>,
}

/// Millions of WRITEs per second at one point of the axis.
#[derive(Debug, Deserialize, Serialize)]
struct Point {
    x: u32,
    size: u32,
    native: f64,
    physical: f64,
    misses: [f64; 2],
    /// LITE over our driver, from the second simulation.
    #[serde(default)]
    lite: f64,
}

/// The results of LITE over our driver at the same points, from the example `lite_scaling` of `cards`.
#[derive(Debug, Deserialize)]
struct LiteOutput {
    memory: Vec<LitePoint>,
    regions: Vec<LitePoint>,
}

/// LITE's millions of WRITEs per second at one point.
#[derive(Debug, Deserialize)]
struct LitePoint {
    x: u32,
    size: u32,
    lite: f64,
}

/// Adds LITE's figures to the points.
fn join(points: &mut [Point], lite: &[LitePoint]) -> Result<()> {
    for point in points {
        let same = lite.iter().find(|other| (other.x, other.size) == (point.x, point.size));
        point.lite = same.context("the simulations have other points")?.lite;
    }
    Ok(())
}

/// Returns the points of a message length, in order.
fn of_size(points: &[Point], size: u32) -> impl DoubleEndedIterator<Item = &Point> {
    points.iter().filter(move |point| point.size == size)
}

/// Simulates, prints tables and draws the chart.
pub(super) fn bench(options: &Options) -> Result<()> {
    let svg = match &options.svg {
        Some(path) => path.clone(),
        None => paths::state()?.join("scaling.svg"),
    };
    let (file, svg) = output::beside("figure", &svg)?;
    let json = options.json.as_deref().map(|path| output::beside("figures", path)).transpose()?;
    interrupt::watch()?;
    let output = measure(options)?;
    let targets = output.targets();
    for table in output.tables() {
        println!("\n{}", table.text());
    }
    println!("{}", target::table(&targets, &[]).text());
    std::fs::write(file.path(), draw(&output).context("cannot draw the figure")?)?;
    file.persist(&svg).with_context(|| format!("cannot write {}", svg.display()))?;
    println!("  figure: {}", svg.display());
    if let Some((file, path)) = json {
        super::write_json(&output, file, &path)?;
    }
    target::judge(options.strict, &targets, &[])
}

/// Runs both simulations with `writes` WRITEs of each point. Returns the tables for memory and for regions.
pub(super) fn tables(writes: u32) -> Result<[Table; 2]> {
    let options = Options {
        writes,
        regions_cached: None,
        pages_cached: None,
        miss_ns: None,
        svg: None,
        json: None,
        strict: false,
    };
    Ok(measure(&options)?.tables())
}

/// Runs both simulations.
fn measure(options: &Options) -> Result<Output> {
    let mut output: Output = ui::step("WRITEs between two emulated cards, in virtual time", || {
        simulate(options, ["connectx3", "scaling"]).context("the simulation of verbs")
    })?;
    let lite: LiteOutput = ui::step("the same by LITE over our driver", || {
        simulate(options, ["cards", "lite_scaling"]).context("the simulation of LITE")
    })?;
    join(&mut output.memory, &lite.memory)?;
    join(&mut output.regions, &lite.regions)?;
    Ok(output)
}

fn simulate<T: DeserializeOwned>(options: &Options, [package, example]: [&str; 2]) -> Result<T> {
    let given = [
        ("--writes", Some(options.writes)),
        ("--regions-cached", options.regions_cached),
        ("--pages-cached", options.pages_cached),
        ("--miss-ns", options.miss_ns),
    ];
    let arguments = given.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?.to_string()]));
    program::simulate(package, example, &arguments.flatten().collect::<Vec<_>>())
}

impl Output {
    /// Returns the targets: ratios between points of the simulation.
    fn targets(&self) -> Vec<Target> {
        let mut targets = Vec::new();
        for (points, axis) in [(&self.memory, "1 MB to 1 GB"), (&self.regions, "1 to 100,000 regions")] {
            for size in SIZES {
                let ends = |f: fn(&Point) -> f64| {
                    let first = of_size(points, size).next().map(f)?;
                    Some(of_size(points, size).next_back().map(f)? / first)
                };
                let mut share = |who: &str, figure, bound| {
                    targets.push(Target::new(format!("{size} B, {who}, {axis}"), figure, "", bound));
                };
                share("one physical key", ends(|p| p.physical), Bound::AtLeast(0.99));
                share("LITE over our driver", ends(|p| p.lite), Bound::AtLeast(0.99));
                share("native", ends(|p| p.native), Bound::AtMost(0.6));
            }
        }
        targets
    }

    fn remark(&self) -> String {
        format!(
            "a simulation, not a measurement of a card: {} writes a point at {} ns of engine time each packet, caches for \
             {} regions and {} pages, {} ns a miss; millions of writes per second",
            self.writes, self.engine_ns, self.regions_cached, self.pages_cached, self.miss_ns
        )
    }

    fn tables(&self) -> [Table; 2] {
        let table = |title, axis, points: &[Point]| {
            let heads = [
                axis,
                "64 B native",
                "64 B one key",
                "64 B LITE",
                "1 KB native",
                "1 KB one key",
                "1 KB LITE",
            ];
            let mut table = Table::new(title, self.remark(), &heads);
            for (small, large) in of_size(points, SIZES[0]).zip(of_size(points, SIZES[1])) {
                let figure = |figure: f64| format!("{figure:.2}");
                table.row([
                    small.x.to_string(),
                    figure(small.native),
                    figure(small.physical),
                    figure(small.lite),
                    figure(large.native),
                    figure(large.physical),
                    figure(large.lite),
                ]);
            }
            table
        };
        [
            table("Writes into one region of growing size (simulated)", "MB", &self.memory),
            table("Writes into a growing number of regions of 4 KiB (simulated)", "regions", &self.regions),
        ]
    }
}

/// Draws two charts side by side.
fn draw(output: &Output) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (1000, 420)).into_drawing_area();
        area.fill(&WHITE).map_err(drawing)?;
        let (heading, rest) = area.split_vertically(30);
        let title = "Simulated ConnectX-3: millions of WRITEs per second";
        heading.draw(&Text::new(title, (300, 8), ("sans-serif", 18))).map_err(drawing)?;
        let (left, right) = rest.split_horizontally(500);
        chart(&left, "MB of memory, one region", &output.memory)?;
        chart(&right, "regions of 4 KiB", &output.regions)?;
        area.present().map_err(drawing)?;
    }
    Ok(svg)
}

/// Converts an error of the drawing library.
fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("{error}")
}

fn chart(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    axis: &str,
    points: &[Point],
) -> Result<()> {
    let last = points.iter().map(|point| point.x).max().unwrap_or(1);
    let top = points.iter().map(|point| point.native.max(point.physical).max(point.lite)).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .margin_right(30)
        .x_label_area_size(36)
        .y_label_area_size(36)
        .build_cartesian_2d((1..last).log_scale(), 0.0..top * 1.5)
        .map_err(drawing)?;
    chart.configure_mesh().x_desc(axis).disable_x_mesh().draw().map_err(drawing)?;
    type Line = (u32, &'static str, fn(&Point) -> f64, RGBColor);
    let lines: [Line; 6] = [
        (SIZES[0], "64 B, one physical key", |p| p.physical, BLUE),
        (SIZES[1], "1 KB, one physical key", |p| p.physical, CYAN),
        (SIZES[0], "64 B, LITE over our driver", |p| p.lite, GREEN),
        (SIZES[1], "1 KB, LITE over our driver", |p| p.lite, BLACK),
        (SIZES[0], "64 B, native", |p| p.native, RED),
        (SIZES[1], "1 KB, native", |p| p.native, MAGENTA),
    ];
    for (size, name, figure, color) in lines {
        let line = of_size(points, size).map(|point| (point.x, figure(point)));
        let series = LineSeries::new(line, color.stroke_width(2)).point_size(3);
        let key = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2));
        chart.draw_series(series).map_err(drawing)?.label(name).legend(key);
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .draw()
        .map_err(drawing)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(last_native: f64, last_physical: f64) -> Output {
        let points = || {
            let point = |x, size, native, physical| Point {
                x,
                size,
                native,
                physical,
                misses: [0.0; 2],
                lite: physical,
            };
            SIZES
                .iter()
                .flat_map(|&s| [point(1, s, 5.0, 5.0), point(9, s, last_native, last_physical)])
                .collect()
        };
        Output {
            writes: 1,
            seed: 1,
            engine_ns: 1,
            miss_ns: 1,
            regions_cached: 1,
            pages_cached: 1,
            memory: points(),
            regions: points(),
        }
    }

    #[test]
    fn a_flat_line_beside_a_falling_one_meets_the_targets() {
        assert!(output(2.0, 5.0).targets().iter().all(|target| target.met));
        assert_eq!(output(4.0, 5.0).targets().iter().filter(|target| !target.met).count(), 4);
        assert_eq!(output(2.0, 4.0).targets().iter().filter(|target| !target.met).count(), 8);
    }

    #[test]
    fn figures_of_other_points_are_refused() {
        let lite = |x| LitePoint { x, size: 64, lite: 3.0 };
        let mut points = output(2.0, 5.0).memory;
        points.truncate(1);
        join(&mut points, &[lite(7), lite(1)]).unwrap();
        assert_eq!(points[0].lite, 3.0);
        assert!(join(&mut points, &[lite(7)]).is_err());
    }

    #[test]
    fn the_figure_names_what_it_shows() {
        let svg = draw(&output(2.0, 5.0)).unwrap();
        for text in ["Simulated", "one physical key", "LITE over our driver", "native", "regions of 4 KiB"] {
            assert!(svg.contains(text), "{text}");
        }
    }
}
