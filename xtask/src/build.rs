//! `cargo xtask build`: the appliance's kernel image.

use anyhow::Result;
use clap::Args;
use lab::image::{self, Apps, Contents};
use lab::{tool, ui};

/// Options of `cargo xtask build`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Applications of the image, separated by commas, as in wordcount,grep [default: all]
    #[arg(long, value_name = "LIST")]
    apps: Option<Apps>,
    /// Size without symbols, in bytes, beyond which a warning is printed
    /// [default: 2600000 with word count alone, otherwise 4000000]
    #[arg(long, value_name = "BYTES")]
    budget: Option<u64>,
}

/// Builds the image that the options select. Prints its path and size.
pub(crate) fn build(options: &Options) -> Result<()> {
    let mut image =
        image::build_quietly(&Contents::with(options.apps.clone().unwrap_or_default()), tool::run_visible)?;
    image.budget = options.budget.unwrap_or(image.budget);
    image.warn();
    let (size, budget) = (ui::bytes(image.stripped_bytes), ui::bytes(image.budget));
    println!("{}: {size} without symbols, of {budget}", image.elf.display());
    Ok(())
}
