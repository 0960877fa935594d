//! Secure Boot through shim with a key of its owner: Microsoft's keys are in the firmware, and MokManager
//! enrols the key, as a person would do it on the machine's keyboard.

use super::disks::{REMOVABLE, directory, place};
use super::secure::{REFUSED_BY_SHIM, SECOND};
use super::tools::Tools;
use super::trial::{Medium, Trial};
use super::with_tools;
use crate::appliance::bare::Bare;
use crate::runner::Case;
use anyhow::{Context, Result, ensure};
use lab::cluster::Lab;
use lab::tool;
use qemu::vm::Machine;
use serde_json::json;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest silence of a program.
const LIMIT: Duration = Duration::from_secs(60);
/// The name under which shim starts MokManager.
const MANAGER: &str = "EFI/BOOT/mmx64.efi";
/// The certificate on the disk, at its top, where it is the last entry.
const CERTIFICATE: &str = "owner.cer";

pub(super) fn cases(full: bool) -> Vec<Case> {
    let check = |tools: &Tools, log: &Path| enrolled(&Trial::new(tools, log)?);
    vec![with_tools("secure-boot-by-shim-enrolled-key", full, check).full_if(true)]
}

/// shim refuses the file, MokManager enrols the key, and shim starts the file.
fn enrolled(trial: &Trial<'_>) -> Result<()> {
    let (key, certificate) = owners(trial)?;
    let [key, certificate] = [key, certificate].map(|path| path.to_string_lossy().into_owned());
    let esp = trial.directory("esp")?;
    place(&trial.image_with("efi", &["--sign", &key, &certificate])?, &esp, SECOND)?;
    trial.tools.copy("usr/lib/shim/shimx64.efi.signed", &esp.join(REMOVABLE))?;
    trial.tools.copy("usr/lib/shim/mmx64.efi.signed", &esp.join(MANAGER))?;
    let mut der = trial.tools.command("openssl")?;
    der.args(["x509", "-outform", "DER", "-in", &certificate, "-out"]).arg(esp.join(CERTIFICATE));
    tool::run_ok(&mut der, trial.log, LIMIT)?;
    let variables = trial.path("variables.fd");
    fs::copy(trial.tools.path("usr/share/OVMF/OVMF_VARS_4M.ms.fd")?, &variables)?;
    let medium = || -> Result<Medium> { Ok(directory(machine(trial, &variables)?, &esp)) };
    enrol(trial, &medium()?).context("MokManager")?;
    trial.joins(medium()?, &["UEFI application from a disk, shim"])
}

/// Makes a key and a certificate that no firmware knows.
fn owners(trial: &Trial<'_>) -> Result<(PathBuf, PathBuf)> {
    let (key, certificate) = (trial.path("owner.key"), trial.path("owner.pem"));
    let mut command = trial.tools.command("openssl")?;
    command.args(["req", "-x509", "-newkey", "rsa:2048", "-noenc", "-days", "30", "-subj", "/CN=owner"]);
    command.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    tool::run_ok(&mut command, trial.log, LIMIT)?;
    Ok((key, certificate))
}

/// Returns a machine that demands signatures, with Microsoft's keys and variables that are kept.
fn machine(trial: &Trial<'_>, variables: &Path) -> Result<Medium> {
    let code = trial.tools.path("usr/share/OVMF/OVMF_CODE_4M.ms.fd")?;
    let drive = |unit: u32, path: &Path, more: &str| -> OsString {
        format!("if=pflash,unit={unit},format=raw{more},file={}", path.display()).into()
    };
    Ok(Medium::new(Machine::Q35, 256)
        .with("-machine", "smm=on")
        .with("-global", "driver=cfi.pflash01,property=secure,value=on")
        .with("-drive", drive(0, &code, ",readonly=on"))
        .with("-drive", drive(1, variables, "")))
}

/// Enrols the certificate: each key is pressed when MokManager's text for it is on the serial port.
fn enrol(trial: &Trial<'_>, medium: &Medium) -> Result<()> {
    let console = trial.path("mok.log");
    let mut rest = vec!["-serial".to_owned(), format!("file:{}", console.display())];
    rest.extend(medium.arguments.iter().map(|argument| argument.to_string_lossy().into_owned()));
    let rest: Vec<_> = rest.iter().map(String::as_str).collect();
    let mut bare = Bare::start(&Lab::get()?.qemu, "-M q35 -accel tcg -cpu max -m 256", &rest[2..], &console)?;
    bare.says(REFUSED_BY_SHIM)?;
    // shim's error, then MokManager's invitation, its menu, and the choice of a disk.
    let steps: [(&str, &[&str]); 7] = [
        ("", &["ret"]),
        ("Press any key to perform MOK management", &["ret"]),
        ("Enroll key from disk", &["down", "ret"]),
        ("Select Key", &["ret"]),
        (CERTIFICATE, &["end", "ret"]),
        ("[Enroll MOK]", &["down", "ret"]),
        ("Enroll the key(s)?", &["down", "ret"]),
    ];
    for (text, keys) in steps {
        bare.says(text).with_context(|| format!("before `{text}`"))?;
        for key in keys {
            press(&mut bare, key)?;
        }
    }
    // The first line of the menu, after a change.
    bare.says("Reboot")?;
    ensure!(!bare.said().contains("Failed to enroll"), "MokManager has failed");
    Ok(())
}

/// Presses a key of the machine's keyboard.
fn press(bare: &mut Bare, key: &str) -> Result<()> {
    // The firmware looks at its keyboard some times in a second, and redraws its menus slowly.
    std::thread::sleep(Duration::from_secs(2));
    bare.execute("send-key", &json!({ "keys": [{ "type": "qcode", "data": key }] })).map(drop)
}
