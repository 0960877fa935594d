//! The applications of the daemon: those of the appliance.

use mapreduce::Job;
use runtime::App;

/// Returns all applications.
#[must_use]
pub fn all() -> Vec<Box<dyn App>> {
    let mut apps: Vec<Box<dyn App>> = vec![
        Box::new(Job::<wordcount::WordCount>::default()),
        Box::new(Job::<grep::Grep>::default()),
        Box::new(litebench::Bench),
        Box::new(litebench::Paced),
        Box::new(litebench::Progress),
        Box::new(litebench::Qos),
        Box::new(echo::Echo),
    ];
    apps.extend(graph::apps());
    apps
}
