//! Appliances whose RNIC is the emulated card: `cargo xtask run --nic cx3`, judged by coreutils, and the suite of LITE's semantics on
//! them.

use super::GROUP;
use crate::cx3::Tools;
use crate::test::cases::{Case, Outcome};
use crate::test::end_to_end::word_count;
use crate::test::inputs::Input;
use crate::test::semantics::on_appliances;
use connectx3::device::Profile;

/// Profiles that stand above under another name, and the one whose link our driver does not drive.
const NOT_DRIVEN: [&str; 3] = ["pro", "vf", "ib"];

pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        case(Input::SmallText, 2, false, "cx3", &[]),
        case(Input::SmallText, 3, false, "cx3-vf,softroce,cx3:cx3", &[]),
        case(Input::Text, 4, false, "cx3", &[]).full_if(true),
        case(Input::Text, 4, true, "cx3", &[]).full_if(true),
        case(Input::Text, 4, false, "cx3-vf", &[]).full_if(true),
        case(Input::Text, 4, true, "cx3-vf,softroce", &[]).full_if(true),
        case(Input::Text, 4, false, "cx3,softroce", &[]).full_if(true),
        case(Input::SmallText, 2, false, "cx3", &["--machine", "q35"]).full_if(true),
        case(Input::SmallText, 2, false, "cx3", &["--cpus", "2"]).full_if(true),
    ];
    for profile in Profile::NAMES.iter().filter(|profile| !NOT_DRIVEN.contains(profile)) {
        cases.push(case(Input::SmallText, 2, false, &format!("cx3:{profile}"), &[]).full_if(true));
        cases.push(semantics(&format!("cx3:{profile}")).full_if(true));
    }
    cases.push(semantics("cx3"));
    cases.push(semantics("cx3-vf").full_if(true));
    cases.push(semantics("cx3-vf,softroce,cx3").full_if(true));
    cases
}

/// All that `tests/semantics` says of LITE, each case of which counts.
fn semantics(nic: &str) -> Case {
    let owned = nic.to_owned();
    Case::new(format!("{GROUP}semantics {nic}"), move |log| match Tools::get()? {
        Ok(_) => on_appliances(&owned, log),
        Err(why) => Ok(Outcome::Skipped(why.to_owned())),
    })
}

fn case(input: Input, nodes: u16, faulty: bool, nic: &str, options: &'static [&'static str]) -> Case {
    let faults = if faulty { " with faults" } else { "" };
    let more: String = options.iter().map(|option| format!(" {}", option.trim_start_matches('-'))).collect();
    let name = format!("{GROUP}appliances {nic} {} {nodes} nodes{faults}{more}", input.name());
    let nic = nic.to_owned();
    Case::new(name, move |log| match Tools::get()? {
        Ok(_) => word_count(input, nodes, faulty, &nic, options, log).map(|()| Outcome::Passed),
        Err(why) => Ok(Outcome::Skipped(why.to_owned())),
    })
}
