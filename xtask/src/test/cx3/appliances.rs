//! Appliances whose RNIC is the emulated card: `cargo xtask run --nic cx3`, judged by coreutils.

use super::GROUP;
use crate::cx3::Tools;
use crate::test::cases::{Case, Outcome};
use crate::test::end_to_end::word_count;
use crate::test::inputs::Input;

pub fn cases() -> Vec<Case> {
    vec![
        case(Input::SmallText, 2, false, &[]),
        case(Input::Text, 4, false, &[]).full_if(true),
        case(Input::Text, 4, true, &[]).full_if(true),
        case(Input::SmallText, 2, false, &["--machine", "q35"]).full_if(true),
        case(Input::SmallText, 2, false, &["--cpus", "2"]).full_if(true),
    ]
}

fn case(input: Input, nodes: u16, faulty: bool, options: &'static [&'static str]) -> Case {
    let faults = if faulty { " with faults" } else { "" };
    let more: String = options.iter().map(|option| format!(" {}", option.trim_start_matches('-'))).collect();
    let name = format!("{GROUP}appliances {} {nodes} nodes{faults}{more}", input.name());
    Case::new(name, move |log| match Tools::get()? {
        Ok(_) => word_count(input, nodes, faulty, "cx3", options, log).map(|()| Outcome::Passed),
        Err(why) => Ok(Outcome::Skipped(why.to_owned())),
    })
}
