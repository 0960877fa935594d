//! The applications of this image.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use mapreduce::Job;
use runtime::App;

/// All of them. perftest alone is given more than LITE, where there is that.
pub fn all(perftest: Option<perftest::Job>) -> Vec<Box<dyn App>> {
    let mut apps: Vec<Box<dyn App>> = vec![
        Box::new(Job::<wordcount::WordCount>::default()),
        Box::new(Job::<grep::Grep>::default()),
        Box::new(litebench::Bench),
        Box::new(litebench::Progress),
        Box::new(echo::Echo),
        #[cfg(feature = "semantics")]
        Box::new(semantics::Suite),
    ];
    apps.extend(perftest.map(|job| Box::new(job) as Box<dyn App>));
    apps
}
