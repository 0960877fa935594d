//! Kernel modules of an unpacked kernel package, in an order in which they can be loaded.
//!
//! The package has no `modules.dep`, which depmod creates on installation, so dependencies are read from the
//! modules.

use super::vmlinux;
use crate::debian::elf;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module to be loaded.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    /// A module that the kernel must have, built in or loadable.
    Required(&'static str),
    /// The module is loaded if it exists; newer kernels provide some functions in another way.
    IfPresent(&'static str),
}

/// The modules of one kernel.
#[derive(Debug)]
pub(super) struct Modules {
    files: BTreeMap<String, PathBuf>,
    builtin: BTreeSet<String>,
    /// The requested modules and their dependencies, with their unpacked ELF files.
    taken: BTreeMap<String, Taken>,
}

#[derive(Debug)]
struct Taken {
    image: Vec<u8>,
    /// The modules that must be loaded first.
    needs: Vec<String>,
}

impl Modules {
    /// Finds the modules below `lib/modules/VERSION`.
    pub(super) fn find(dir: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        collect(&dir.join("kernel"), &mut files)?;
        let builtin =
            fs::read_to_string(dir.join("modules.builtin")).context("no list of built-in modules")?;
        let builtin = builtin.lines().filter_map(|line| module_name(Path::new(line))).collect();
        Ok(Self { files, builtin, taken: BTreeMap::new() })
    }

    /// Returns the names of the wanted modules and of all their dependencies, each after its own
    /// dependencies.
    pub(super) fn order(&mut self, wanted: &[Wanted]) -> Result<Vec<String>> {
        let (mut order, mut seen) = (Vec::new(), BTreeSet::new());
        for want in wanted {
            match *want {
                Wanted::Required(name) => self.visit(name, &mut order, &mut seen)?,
                Wanted::IfPresent(name) if self.files.contains_key(name) => {
                    self.visit(name, &mut order, &mut seen)?;
                }
                Wanted::IfPresent(_) => {}
            }
        }
        Ok(order)
    }

    /// Returns the modules of all orders so far, with their ELF files.
    pub(super) fn taken(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.taken.iter().map(|(name, taken)| (name.as_str(), taken.image.as_slice()))
    }

    /// Adds a module after its dependencies. `seen` also contains the modules that are being visited, because
    /// soft dependencies may be circular.
    fn visit(&mut self, name: &str, order: &mut Vec<String>, seen: &mut BTreeSet<String>) -> Result<()> {
        if self.builtin.contains(name) || !seen.insert(name.to_owned()) {
            return Ok(());
        }
        if !self.taken.contains_key(name) {
            let taken = self.read(name)?;
            self.taken.insert(name.to_owned(), taken);
        }
        let needs = self.taken.get(name).map(|taken| taken.needs.clone()).unwrap_or_default();
        for needed in needs {
            self.visit(&needed, order, seen)?;
        }
        order.push(name.to_owned());
        Ok(())
    }

    fn read(&self, name: &str) -> Result<Taken> {
        let path = self.files.get(name).with_context(|| format!("the kernel has no module {name}"))?;
        let mut image = fs::read(path)?;
        if path.extension().is_some_and(|extension| extension == "xz") {
            image =
                vmlinux::unpack_xz(&image).with_context(|| format!("cannot unpack {}", path.display()))?;
        }
        let info = elf::module_info(&image).with_context(|| format!("cannot read {}", path.display()))?;
        let mut needs = Vec::new();
        for (key, value) in info {
            match key.as_str() {
                "depends" => {
                    let names = value.split(',').filter(|needed| !needed.is_empty());
                    needs.extend(names.map(|needed| needed.replace('-', "_")));
                }
                // A soft dependency may also name an alias; a name of no module is left to the kernel.
                "softdep" => {
                    let before = softdeps_before(&value);
                    needs.extend(before.into_iter().filter(|before| self.files.contains_key(before)));
                }
                _ => {}
            }
        }
        Ok(Taken { image, needs })
    }
}

/// Returns the modules that `pre: a b post: c` requests to be loaded first.
fn softdeps_before(advice: &str) -> Vec<String> {
    let words = advice.split_whitespace().skip_while(|word| *word != "pre:").skip(1);
    words.take_while(|word| !word.ends_with(':')).map(|word| word.replace('-', "_")).collect()
}

/// Returns the module name of a file: `kernel/a/b-c.ko.xz` is the module `b_c`.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let stem = file.strip_suffix(".ko").or_else(|| file.strip_suffix(".ko.xz"))?;
    Some(stem.replace('-', "_"))
}

fn collect(dir: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            collect(&path, files)?;
        } else if let Some(name) = module_name(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_the_kernel_says_them() {
        assert_eq!(module_name(Path::new("kernel/lib/crc-t10dif.ko")).as_deref(), Some("crc_t10dif"));
        assert_eq!(module_name(Path::new("x/virtio_net.ko.xz")).as_deref(), Some("virtio_net"));
        assert_eq!(module_name(Path::new("modules.order")), None);
    }

    #[test]
    fn soft_dependencies() {
        assert_eq!(softdeps_before("pre: crc32c sha-256 post: x"), ["crc32c", "sha_256"]);
        assert!(softdeps_before("post: y").is_empty());
    }

    /// Returns a module as an ELF object that contains only its `.modinfo`.
    fn object(modinfo: &str) -> Vec<u8> {
        use object::write::Object;
        use object::{Architecture, BinaryFormat, Endianness, SectionKind};
        let mut module = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let section = module.add_section(Vec::new(), b".modinfo".to_vec(), SectionKind::ReadOnlyData);
        module.append_section_data(section, modinfo.as_bytes(), 1);
        module.write().unwrap()
    }

    #[test]
    fn each_module_comes_once_and_after_what_it_needs() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("kernel/net")).unwrap();
        fs::write(dir.path().join("modules.builtin"), "kernel/lib/built-in.ko\n").unwrap();
        for (file, modinfo) in [
            ("net/top.ko", "depends=mid,low-one,built_in\0"),
            ("net/mid.ko", "depends=low-one\0"),
            ("low-one.ko", "depends=\0softdep=pre: hint alias\0"),
            ("hint.ko", "license=GPL\0"),
        ] {
            fs::write(dir.path().join("kernel").join(file), object(modinfo)).unwrap();
        }
        let mut modules = Modules::find(dir.path()).unwrap();
        let first = modules.order(&[Wanted::Required("low_one"), Wanted::IfPresent("absent")]).unwrap();
        assert_eq!(first, ["hint", "low_one"]);
        assert_eq!(modules.order(&[Wanted::Required("top")]).unwrap(), ["hint", "low_one", "mid", "top"]);
        assert_eq!(modules.taken().count(), 4);
        assert!(modules.order(&[Wanted::Required("absent")]).is_err());
    }
}
