//! Kernel modules of an unpacked kernel package, in the order in which they can be loaded.
//!
//! The package has no `modules.dep` (depmod makes it on installation), so dependencies are read from the modules.

use super::{elf, vmlinux};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module that is wanted.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    /// The kernel must have it, built in or as a module.
    Required(&'static str),
    /// Used where it exists: newer kernels have some functions elsewhere.
    IfPresent(&'static str),
}

/// A module to load.
#[derive(Debug)]
pub struct Module {
    pub name: String,
    /// Its ELF file, unpacked.
    pub image: Vec<u8>,
}

/// The modules of one kernel.
#[derive(Debug)]
pub struct Modules {
    files: BTreeMap<String, PathBuf>,
    builtin: BTreeSet<String>,
    taken: BTreeSet<String>,
}

impl Modules {
    /// Finds the modules below `lib/modules/VERSION`.
    pub fn find(dir: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        collect(&dir.join("kernel"), &mut files)?;
        let builtin =
            fs::read_to_string(dir.join("modules.builtin")).context("no list of built-in modules")?;
        let builtin = builtin.lines().filter_map(|line| module_name(Path::new(line))).collect();
        Ok(Self { files, builtin, taken: BTreeSet::new() })
    }

    /// The wanted modules and all that they depend on, each after what it needs; those taken before are left out.
    pub fn take(&mut self, wanted: &[Wanted]) -> Result<Vec<Module>> {
        let mut order = Vec::new();
        for want in wanted {
            match *want {
                Wanted::Required(name) => self.visit(name, &mut order)?,
                Wanted::IfPresent(name) if self.files.contains_key(name) => self.visit(name, &mut order)?,
                Wanted::IfPresent(_) => {}
            }
        }
        Ok(order)
    }

    fn visit(&mut self, name: &str, order: &mut Vec<Module>) -> Result<()> {
        if self.builtin.contains(name) || !self.taken.insert(name.to_owned()) {
            return Ok(());
        }
        let path = self.files.get(name).with_context(|| format!("the kernel has no module {name}"))?;
        let mut image = fs::read(path)?;
        if path.extension().is_some_and(|extension| extension == "xz") {
            image =
                vmlinux::unpack_xz(&image).with_context(|| format!("cannot unpack {}", path.display()))?;
        }
        let info = elf::module_info(&image).with_context(|| format!("cannot read {}", path.display()))?;
        for (key, value) in info {
            match key.as_str() {
                "depends" => {
                    for needed in value.split(',').filter(|needed| !needed.is_empty()) {
                        self.visit(&needed.replace('-', "_"), order)?;
                    }
                }
                // Advice that may also name an alias; what is no module's name is left to the kernel.
                "softdep" => {
                    for before in softdeps_before(&value) {
                        if self.files.contains_key(&before) {
                            self.visit(&before, order)?;
                        }
                    }
                }
                _ => {}
            }
        }
        order.push(Module { name: name.to_owned(), image });
        Ok(())
    }
}

/// The modules that `pre: a b post: c` wants loaded before.
fn softdeps_before(advice: &str) -> Vec<String> {
    let words = advice.split_whitespace().skip_while(|word| *word != "pre:").skip(1);
    words.take_while(|word| !word.ends_with(':')).map(|word| word.replace('-', "_")).collect()
}

/// `kernel/a/b-c.ko.xz` is the module `b_c`.
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

    /// A module as an ELF object with nothing but its `.modinfo`.
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
        let names = |order: Vec<Module>| order.into_iter().map(|m| m.name).collect::<Vec<_>>();
        let first = modules.take(&[Wanted::Required("low_one"), Wanted::IfPresent("absent")]).unwrap();
        assert_eq!(names(first), ["hint", "low_one"]);
        assert_eq!(names(modules.take(&[Wanted::Required("top")]).unwrap()), ["mid", "top"]);
        assert!(modules.take(&[Wanted::Required("absent")]).is_err());
    }
}
