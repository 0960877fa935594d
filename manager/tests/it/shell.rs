//! Completion in a real shell, and the manual pages.

use crate::daemon::{BINARY, Daemon, Directory, join_as};
use crate::users::run;
use std::path::Path;
use std::process::Command;

/// Returns the candidates of bash for the last word of a command line.
fn complete(daemon: &Daemon, line: &str) -> Vec<String> {
    let script = r#"
        source <(ferrolite completions bash)
        complete -p ferrolite >&2 || exit 1
        COMP_WORDS=($1 "$2") COMP_CWORD=$(wc -w <<<"$1") COMP_TYPE=9
        function=$(complete -p ferrolite | sed 's/.*-F \([^ ]*\).*/\1/')
        $function ferrolite "$2" ""
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let (words, last) = line.rsplit_once(' ').unwrap();
    let binary = Path::new(BINARY).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.args(["-c", script, "bash", words, last]).env("PATH", path);
    command.env("FERROLITE_MANAGER", &daemon.address).env("FERROLITE_KEY_FILE", &daemon.key_file);
    let done = command.output().expect("bash");
    assert!(done.status.success(), "{done:?}");
    let text = String::from_utf8(done.stdout).unwrap();
    text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

#[test]
fn bash_completes_commands_options_and_names() {
    let directory = Directory::new("completions");
    let daemon = Daemon::start(&directory, &[]);
    assert!(complete(&daemon, "ferrolite node po").contains(&"power".into()));
    assert!(complete(&daemon, "ferrolite user add x --role o").contains(&"operator".into()));
    assert!(complete(&daemon, "ferrolite node ls --ma").contains(&"--manager".into()));
    assert!(complete(&daemon, "ferrolite node power off al").is_empty());
    let _nodes = ["alpha", "alto", "beta"].map(|name| join_as(&daemon, name));
    assert_eq!(complete(&daemon, "ferrolite node power off al"), ["alpha", "alto"]);
    // Hidden commands are not offered.
    assert!(!complete(&daemon, "ferrolite m").contains(&"man".into()));
}

#[test]
fn a_script_of_each_shell_names_the_program() {
    for shell in ["bash", "zsh", "fish"] {
        let done = Command::new(BINARY).args(["completions", shell]).output().unwrap();
        let script = String::from_utf8(done.stdout).unwrap();
        assert!(done.status.success() && script.contains("ferrolite"), "{shell}: {script}");
        assert!(!script.contains(BINARY), "{shell}: the place of the program on this host");
    }
}

#[test]
fn each_command_has_a_manual_page_with_its_options() {
    let directory = Directory::new("man");
    let pages = directory.join("pages");
    let daemon = Daemon::start(&directory, &[]);
    let listed = String::from_utf8(run(&daemon, &daemon.key_file, "commands").stdout).unwrap();
    let done = Command::new(BINARY).arg("man").arg(&pages).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let mut checked = 0;
    for line in listed.lines() {
        let (path, _) = line.split_once('\t').unwrap();
        let page = pages.join(format!("ferrolite-{}.1", path.replace(' ', "-")));
        if matches!(path, "man" | "commands") {
            assert!(!page.exists(), "{path} is hidden");
            continue;
        }
        let text = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{path}: {error}"));
        let name = format!(".TH ferrolite-{} 1", path.replace(' ', "-"));
        assert!(text.contains(&name), "{path}: lacks {name}: {text}");
        let help = Command::new(BINARY).args(path.split(' ')).arg("--help").output().unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        for option in help.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2) {
            let option: String = option
                .trim_start_matches("--")
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '-')
                .collect();
            assert!(text.contains(&option.replace('-', "\\-")), "{path}: the page lacks --{option}");
        }
        checked += 1;
    }
    assert!(checked > 20, "{checked}");
    assert!(pages.join("ferrolite.1").exists());
}
