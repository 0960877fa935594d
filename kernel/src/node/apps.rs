//! The applications of this image.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use mapreduce::Job;
use runtime::App;

/// All of them. perftest alone is given more than LITE.
pub fn all(perftest: perftest::Job) -> Vec<Box<dyn App>> {
    vec![
        Box::new(Job::<wordcount::WordCount>::default()),
        Box::new(Job::<grep::Grep>::default()),
        Box::new(litebench::Bench),
        Box::new(litebench::Progress),
        Box::new(echo::Echo),
        Box::new(perftest),
        #[cfg(feature = "semantics")]
        Box::new(semantics::Suite),
    ]
}
