//! The profiles that callgrind writes (its manual, "Callgrind Format Specification").

use std::collections::{BTreeMap, HashMap};

/// A function, and the program or library that contains it. In a library without symbols, names are numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::bench) struct Site {
    pub object: String,
    pub function: String,
}

/// The calls of one function by another, and the instructions of the callee with everything that it called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::bench) struct Calls {
    pub caller: Site,
    pub callee: Site,
    pub count: u64,
    pub instructions: u64,
}

/// A profile.
#[derive(Debug, Default)]
pub(in crate::bench) struct Profile {
    /// Instructions by source file and function, without those of called functions. The file of inlined code
    /// is that of its source.
    pub costs: BTreeMap<(String, String), u64>,
    pub calls: Vec<Calls>,
    /// The number of executions of each instruction, by its program or library and its address there. Empty
    /// without the option `--dump-instr=yes`.
    pub executed: BTreeMap<(String, u64), u64>,
}

impl Profile {
    /// Parses a profile. Lines that do not belong to the format are skipped.
    pub(in crate::bench) fn parse(text: &str) -> Self {
        let (mut files, mut objects, mut functions) = (Names::default(), Names::default(), Names::default());
        let (mut file, mut here, mut there) = (String::new(), Site::default(), Site::default());
        // The number of calls whose cost is on the next line.
        let mut count = None;
        let (mut has_addresses, mut address) = (false, 0);
        let mut profile = Self::default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once('=') else {
                has_addresses |= line == "positions: instr line";
                let Some((at, instructions)) = cost(line, has_addresses, address) else { continue };
                address = at;
                if let Some(count) = count.take() {
                    let (caller, callee) = (here.clone(), there.clone());
                    profile.calls.push(Calls { caller, callee, count, instructions });
                    there.object.clone_from(&here.object);
                } else {
                    let place = (file.clone(), here.function.clone());
                    *profile.costs.entry(place).or_default() += instructions;
                    if has_addresses {
                        let place = (here.object.clone(), address);
                        *profile.executed.entry(place).or_default() += instructions;
                    }
                }
                continue;
            };
            match key {
                "fl" | "fi" | "fe" => file = files.resolve(value),
                "fn" => here.function = functions.resolve(value),
                "ob" => {
                    here.object = objects.resolve(value);
                    there.object.clone_from(&here.object);
                }
                "cob" => there.object = objects.resolve(value),
                "cfn" => there.function = functions.resolve(value),
                // The file of a callee does not count, but the line may define the name of a file.
                "cfi" | "cfl" => drop(files.resolve(value)),
                "calls" => count = value.split(' ').next().and_then(|n| n.parse().ok()),
                _ => {}
            }
        }
        profile
    }
}

/// Parses an address: a number, its distance from the one before, or `*` for the same one.
fn address(word: &str, before: u64) -> Option<u64> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    match word.split_at_checked(1)? {
        ("+", distance) => before.checked_add(number(distance)?),
        ("-", distance) => before.checked_sub(number(distance)?),
        ("*", "") => Some(before),
        _ => number(word),
    }
}

/// Returns the address and the instructions of a line of costs. The line's number precedes the instructions.
/// If the profile has addresses, the address comes first; `before` is the one of the preceding line.
fn cost(line: &str, has_addresses: bool, before: u64) -> Option<(u64, u64)> {
    let is_cost = line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c));
    let mut words = line.split(' ').filter(|_| is_cost);
    let address = if has_addresses { address(words.next()?, before)? } else { before };
    Some((address, words.nth(1)?.parse().ok()?))
}

/// The names of one kind that a profile has defined, by number.
#[derive(Default)]
struct Names(HashMap<String, String>);

impl Names {
    /// Resolves a name: `(7) name` defines 7, and `(7)` refers to it.
    fn resolve(&mut self, value: &str) -> String {
        let (number, name) = value.split_once(' ').unwrap_or((value, ""));
        if !name.is_empty() {
            self.0.insert(number.to_owned(), name.to_owned());
        }
        self.0.get(number).cloned().unwrap_or_else(|| value.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_counted_by_address_without_the_called_ones() {
        let profile = "positions: instr line\nevents: Ir\n\nob=(1) /bin/a\nfn=(1) main\n0x10c0 5 10\n+4 5 2\n* 6 1\n\
            cob=(2) /lib/b.so\ncfn=(2) f\ncalls=3 0x20 0\n-2 6 300\n-2 7 7\n\nob=(2)\nfn=(2)\n0x10c0 0 300\n";
        let place = |object: &str, address| (object.to_owned(), address);
        let expected =
            [(place("/bin/a", 0x10c0), 17), (place("/bin/a", 0x10c4), 3), (place("/lib/b.so", 0x10c0), 300)];
        assert_eq!(Profile::parse(profile).executed, BTreeMap::from(expected));
    }

    #[test]
    fn calls_are_told_with_their_objects() {
        let profile = "positions: line\nevents: Ir\n\nob=(1) /bin/a\nfl=(1) a.c\nfn=(1) main\n5 10\ncob=(2) /lib/b.so\n\
            cfi=(2) b.c\ncfn=(2) 0x10\ncalls=3 0\n6 300\ncfn=(3) own\ncalls=1 9\n7 5\n\nfn=(3)\n9 5\n\nob=(2)\nfn=(2)\n0 300\n";
        let site = |object: &str, function: &str| Site { object: object.into(), function: function.into() };
        let main = site("/bin/a", "main");
        let to = |callee, count, instructions| Calls { caller: main.clone(), callee, count, instructions };
        let expected = [to(site("/lib/b.so", "0x10"), 3, 300), to(site("/bin/a", "own"), 1, 5)];
        assert_eq!(Profile::parse(profile).calls, expected);
    }
}
