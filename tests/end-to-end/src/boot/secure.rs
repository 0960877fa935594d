//! Secure Boot: OVMF with the keys of Debian's package (`snakeoil`), whose private key is in the
//! package, too.

use super::disks::{REMOVABLE, directory, place};
use super::trial::{Medium, Trial};
use super::with_tools;
use crate::runner::Case;
use anyhow::{Context, Result};
use lab::tool;
use qemu::vm::Machine;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest silence of a program.
const LIMIT: Duration = Duration::from_secs(60);
/// The answer of firmware to a program without a valid signature.
const REFUSED_BY_FIRMWARE: &str = "Access Denied";
/// The answer of shim.
pub(super) const REFUSED_BY_SHIM: &str = "Verification failed";
/// The name of the program that shim starts.
pub(super) const SECOND: &str = "EFI/BOOT/GRUBX64.EFI";

/// The state of the boot file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signature {
    Valid,
    None,
    /// Valid until one bit of the kernel has changed.
    Broken,
}

pub(super) fn cases(full: bool) -> Vec<Case> {
    let signatures =
        [("signed", Signature::Valid), ("unsigned", Signature::None), ("one-bit", Signature::Broken)];
    let case = |shim: bool, (name, signature): (&str, Signature)| {
        let loader = if shim { "-by-shim" } else { "" };
        with_tools(&format!("secure-boot{loader}-{name}"), full, move |tools, log| {
            boots(&Trial::new(tools, log)?, shim, signature)
        })
        .full_if(true)
    };
    [false, true].into_iter().flat_map(|shim| signatures.map(|signature| case(shim, signature))).collect()
}

/// Boots the file, which is refused without a valid signature.
fn boots(trial: &Trial<'_>, shim: bool, signature: Signature) -> Result<()> {
    let (key, certificate) = keys(trial)?;
    let paths = [&key, &certificate].map(|path| path.to_string_lossy().into_owned());
    let [key_path, certificate_path] = &paths;
    let sign = ["--sign", key_path, certificate_path];
    let mut file = trial.image_with("efi", if signature == Signature::None { &[] } else { &sign })?;
    if signature == Signature::Broken {
        file = flipped(&file)?;
    }
    let esp = trial.directory("esp")?;
    if shim {
        place(&file, &esp, SECOND)?;
        sign_shim(trial, &key, &certificate, &esp.join(REMOVABLE))?;
    } else {
        place(&file, &esp, REMOVABLE)?;
    }
    let medium = directory(machine(trial)?, &esp);
    match (signature, shim) {
        (Signature::Valid, true) => trial.joins(medium, &["UEFI application from a disk, shim"]),
        (Signature::Valid, false) => trial.joins(medium, &["UEFI application from a disk"]),
        (_, true) => trial.is_refused(medium, REFUSED_BY_SHIM),
        (_, false) => trial.is_refused(medium, REFUSED_BY_FIRMWARE),
    }
}

/// Returns a machine that demands signatures.
fn machine(trial: &Trial<'_>) -> Result<Medium> {
    let drive = |unit: u32, file: &str, more: &str| -> Result<OsString> {
        let path = trial.tools.path(&format!("usr/share/OVMF/{file}"))?;
        Ok(format!("if=pflash,unit={unit},format=raw,{more},file={}", path.display()).into())
    };
    Ok(Medium::new(Machine::Q35, 256)
        .with("-machine", "smm=on")
        .with("-global", "driver=cfi.pflash01,property=secure,value=on")
        .with("-drive", drive(0, "OVMF_CODE_4M.snakeoil.fd", "readonly=on")?)
        .with("-drive", drive(1, "OVMF_VARS_4M.snakeoil.fd", "snapshot=on")?))
}

/// Returns the private key, without its password, and the certificate that the firmware knows.
pub(super) fn keys(trial: &Trial<'_>) -> Result<(PathBuf, PathBuf)> {
    let key = trial.path("snakeoil.key");
    let mut command = trial.tools.command("openssl")?;
    command.args(["rsa", "-passin", "pass:snakeoil", "-in"]);
    command.arg(trial.tools.path("usr/share/ovmf/PkKek-1-snakeoil.key")?).arg("-out").arg(&key);
    tool::run_ok(&mut command, trial.log, LIMIT)?;
    Ok((key, trial.tools.path("usr/share/ovmf/PkKek-1-snakeoil.pem")?))
}

/// Adds a signature to Debian's shim, which has one of Microsoft.
fn sign_shim(trial: &Trial<'_>, key: &Path, certificate: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("no directory")?)?;
    let mut command = trial.tools.command("sbsign")?;
    command.arg("--key").arg(key).arg("--cert").arg(certificate).arg("--output").arg(to);
    command.arg(trial.tools.path("usr/lib/shim/shimx64.efi.signed")?);
    tool::run_ok(&mut command, trial.log, LIMIT).map(drop)
}

/// Returns a copy of the file with one bit changed, in the middle, where the kernel is.
fn flipped(file: &Path) -> Result<PathBuf> {
    let mut bytes = fs::read(file)?;
    let middle = bytes.len() / 2;
    *bytes.get_mut(middle).context("an empty file")? ^= 1;
    let path = file.with_extension("flipped");
    fs::write(&path, bytes)?;
    Ok(path)
}
