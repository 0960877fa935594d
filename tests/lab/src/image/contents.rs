//! The contents of an image: its applications and its heap, as features of the kernel.

use std::fmt;
use std::str::FromStr;

/// The manifest of the table of applications, each of which is a feature of it.
const TABLE: &str = include_str!("../../../../apps/all/Cargo.toml");
/// The application that needs more than LITE, and is a feature of the kernel.
const OF_THE_KERNEL: &str = "perftest";
/// The applications of the core image.
const CORE: [&str; 1] = ["wordcount"];

/// Returns all applications, sorted.
fn known() -> Vec<&'static str> {
    let line = TABLE.lines().find_map(|line| line.strip_prefix("default = ")).unwrap_or_default();
    let mut known: Vec<_> = line.split('"').skip(1).step_by(2).chain([OF_THE_KERNEL]).collect();
    known.sort_unstable();
    known
}

/// Returns the kernel's feature of an application.
fn feature(app: &str) -> String {
    if app == OF_THE_KERNEL { app.to_owned() } else { format!("applications/{app}") }
}

/// The applications of an image, sorted, without duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Apps(Vec<&'static str>);

impl Apps {
    /// Returns the applications of the core image: word count alone.
    pub fn core() -> Self {
        Self(CORE.to_vec())
    }
}

impl Default for Apps {
    fn default() -> Self {
        Self(known())
    }
}

impl FromStr for Apps {
    type Err = String;

    fn from_str(list: &str) -> Result<Self, String> {
        let all = known();
        let known = |name: &str| all.iter().copied().find(|known| *known == name);
        let mut apps = list
            .split(',')
            .map(|name| {
                known(name)
                    .ok_or_else(|| format!("unknown application `{name}`; there are: {}", all.join(", ")))
            })
            .collect::<Result<Vec<_>, _>>()?;
        apps.sort_unstable();
        apps.dedup();
        Ok(Self(apps))
    }
}

impl fmt::Display for Apps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

/// The allocator of the kernel's heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heap {
    /// The allocator talc, which shipped images use.
    #[default]
    Talc,
    /// The allocator that `cargo xtask bench heaps` compares with the shipped one.
    LinkedList,
}

/// The contents of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The applications.
    pub apps: Apps,
    /// The allocator of the heap.
    pub heap: Heap,
    /// True if the image is for tests and never ships: it contains the kernel's self-tests, and the suite of
    /// LITE's semantics among its applications.
    pub tests: bool,
}

impl Contents {
    /// Returns the contents of an image with the given applications.
    pub fn with(apps: Apps) -> Self {
        Self { apps, ..Self::default() }
    }

    /// Returns the image for tests that the shipped image cannot run. All tests share it, because each image
    /// takes long to build.
    pub fn tests() -> Self {
        Self { tests: true, ..Self::default() }
    }

    /// Returns the kernel's features, for cargo.
    pub fn features(&self) -> String {
        let heap = match self.heap {
            Heap::Talc => "heap-talc",
            Heap::LinkedList => "heap-linked-list",
        };
        let tests = if self.tests { &["selftest", "semantics"][..] } else { &[] };
        let apps = self.apps.0.iter().map(|app| feature(app));
        let others = [heap].into_iter().chain(tests.iter().copied()).map(str::to_owned);
        apps.chain(others).collect::<Vec<_>>().join(",")
    }

    /// Returns the name of the image's directory. Different contents have different names.
    pub fn name(&self) -> String {
        let mut name = if self.apps == Apps::default() { "all".to_owned() } else { self.apps.0.join("-") };
        if self.heap == Heap::LinkedList {
            name.push_str("+linked-list");
        }
        if self.tests {
            name.push_str("+tests");
        }
        name
    }

    /// Returns the greatest intended size of the image in bytes, which is smaller for the core image.
    pub fn budget(&self) -> u64 {
        if self.apps == Apps::core() { super::size::CORE_BUDGET } else { super::size::BUDGET }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_applications() {
        let apps = |list: &str| list.parse::<Apps>().map(|apps| apps.to_string());
        assert_eq!(apps("wordcount,grep").as_deref(), Ok("grep,wordcount"));
        assert_eq!(apps("echo,echo").as_deref(), Ok("echo"));
        let mut all = known();
        assert!(all.contains(&"perftest") && all.contains(&"graph"), "{all:?}");
        let there = all.join(", ");
        all.reverse();
        assert_eq!(apps(&all.join(",")), Ok(Apps::default().to_string()));
        for (list, name) in [("", ""), ("wordcloud", "wordcloud"), ("grep,", ""), ("grep, echo", " echo")] {
            let why = apps(list).unwrap_err();
            assert_eq!(why, format!("unknown application `{name}`; there are: {there}"));
        }
    }

    #[test]
    fn different_contents_have_different_names_and_features() {
        let of = |list: &str| Contents::with(list.parse().unwrap());
        let all = Contents::default;
        let contents = [
            all(),
            of("wordcount"),
            of("grep,wordcount"),
            Contents::tests(),
            Contents { heap: Heap::LinkedList, ..all() },
        ];
        for (n, a) in contents.iter().enumerate() {
            for b in contents.iter().skip(n + 1) {
                assert!(a.name() != b.name() && a.features() != b.features(), "{a:?} {b:?}");
            }
        }
        assert_eq!(of("echo,perftest").features(), "applications/echo,perftest,heap-talc");
        assert_eq!((all().budget(), of("wordcount").budget()), (4_000_000, 2_700_000));
    }

    #[test]
    fn the_kernel_has_these_features_by_default() {
        let manifest = std::fs::read_to_string(crate::paths::root().join("kernel/Cargo.toml")).unwrap();
        let line = manifest.lines().find_map(|line| line.strip_prefix("default = ")).unwrap();
        let mut default: Vec<_> = line.split('"').skip(1).step_by(2).collect();
        let of_table = |feature: &&str| feature.starts_with("applications/");
        let features = Contents::default().features();
        let mut ours: Vec<_> = features.split(',').filter(|feature| !of_table(feature)).collect();
        ours.push("applications/default");
        default.sort_unstable();
        ours.sort_unstable();
        assert_eq!(default, ours);
    }
}
