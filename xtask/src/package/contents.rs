//! The contents of each package, and the places where they are installed.

/// A package. Its fields and scripts, and the files of [`Source::Package`], are in the directory of its name
/// below `host/packages`.
pub(super) struct Package {
    pub(super) name: &'static str,
    /// Programs of the workspace, which are installed in `/usr/bin` with their manual pages.
    pub(super) programs: &'static [&'static str],
    pub(super) files: &'static [File],
    /// The place of the shared library for C, in the package that has it.
    pub(super) library: Option<&'static str>,
    /// Symbolic links, each with its target.
    pub(super) links: &'static [(&'static str, &'static str)],
}

/// A file that is installed.
pub(super) struct File {
    pub(super) source: Source,
    /// The path below the root of the file system, without a leading slash.
    pub(super) place: &'static str,
}

/// The origin of a file.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// A file of the package's own directory.
    Package(&'static str),
    /// A file of the repository, by its path.
    Repository(&'static str),
    /// A boot file of the appliance, by its name.
    BootFile(&'static str),
}

const fn file(source: Source, place: &'static str) -> File {
    File { source, place }
}

/// The packages.
pub(super) const PACKAGES: [Package; 3] = [
    Package {
        name: "ferrolite",
        programs: &["ferrolite"],
        files: &[
            file(
                Source::Package("ferrolite-manager.service"),
                "usr/lib/systemd/system/ferrolite-manager.service",
            ),
            file(Source::Package("ferrolite-pxe.service"), "usr/lib/systemd/system/ferrolite-pxe.service"),
            file(Source::Package("ferrolite.sysusers"), "usr/lib/sysusers.d/ferrolite.conf"),
            file(Source::Package("ferrolite-manager.default"), "etc/default/ferrolite-manager"),
            file(Source::Package("manager.toml"), "etc/ferrolite/manager.toml"),
            file(Source::Package("ferrolite-pxe.default"), "etc/default/ferrolite-pxe"),
            file(Source::BootFile("ferrolite.elf"), "usr/lib/ferrolite/ferrolite.elf"),
            file(Source::BootFile("ferrolite.efi"), "usr/lib/ferrolite/ferrolite.efi"),
        ],
        library: None,
        links: &[
            ("usr/bin/ferrolite-manager", "ferrolite"),
            ("usr/share/man/man1/ferrolite-manager.1.gz", "ferrolite.1.gz"),
        ],
    },
    Package {
        name: "ferrolite-node",
        programs: &["lite-node"],
        files: &[
            file(Source::Package("ferrolite-node.service"), "usr/lib/systemd/system/ferrolite-node.service"),
            file(Source::Package("ferrolite-node.default"), "etc/default/ferrolite-node"),
            file(Source::Repository("host/capi/include/ferrolite.h"), "usr/include/ferrolite.h"),
            file(
                Source::Repository("host/capi/python/ferrolite.py"),
                "usr/lib/python3/dist-packages/ferrolite.py",
            ),
        ],
        library: Some("usr/lib/x86_64-linux-gnu/libferrolite.so.0"),
        links: &[("usr/lib/x86_64-linux-gnu/libferrolite.so", "libferrolite.so.0")],
    },
    Package { name: "ferrolite-cx3", programs: &["cx3"], files: &[], library: None, links: &[] },
];
