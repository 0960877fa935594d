//! LITE's settings as options of a command line: `--peers 256` for the setting `peers`.

use anyhow::{Result, anyhow};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

/// The settings on the command line, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LiteOptions(Vec<(&'static str, String)>);

impl LiteOptions {
    /// Returns LITE's sizes and times with these settings.
    ///
    /// # Errors
    /// If a value is not valid: one line that names the option.
    pub(crate) fn config(&self) -> Result<lite::Config> {
        let mut config = lite::Config::default();
        for (name, value) in &self.0 {
            config.set(name, value).map_err(|error| anyhow!("--{error}"))?;
        }
        Ok(config)
    }
}

impl Args for LiteOptions {
    fn augment_args(command: Command) -> Command {
        lite::SETTINGS.iter().fold(command, |command, setting| {
            let option = Arg::new(setting.name).long(setting.name).value_name("VALUE");
            command.arg(option.help(format!("LITE: {}; {}", setting.help, setting.wanted())))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for LiteOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given =
            |setting: &lite::Setting| Some((setting.name, matches.get_one::<String>(setting.name)?.clone()));
        Ok(Self(lite::SETTINGS.iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.extend(Self::from_arg_matches(matches)?.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> LiteOptions {
        let command = LiteOptions::augment_args(Command::new("test").args_override_self(true));
        let matches = command.try_get_matches_from(words).expect("known options");
        LiteOptions::from_arg_matches(&matches).expect("options")
    }

    #[test]
    fn options_become_settings() {
        let given = ["test", "--peers", "9", "--deadline=90s", "--bounce", "64x8,4Kx8,64Kx8", "--peers", "7"];
        let config = parse(&given).config().expect("a configuration");
        assert_eq!((config.peers, config.deadline.as_secs()), (7, 90));
        assert_eq!(config.bounce, [(64, 8), (4096, 8), (65536, 8)]);
        let error = parse(&["test", "--peers", "0"]).config().expect_err("no such number");
        assert_eq!(error.to_string(), "--peers=0: want a number from 2 to 4095");
    }
}
