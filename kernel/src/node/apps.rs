//! The applications of this image: those whose features it is built with.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use runtime::App;

/// All of them. perftest alone is given more than LITE, where there is that.
pub fn all(perftest: Option<Box<dyn App>>) -> Vec<Box<dyn App>> {
    let mut apps: Vec<Box<dyn App>> = vec![
        #[cfg(feature = "wordcount")]
        Box::new(mapreduce::Job::<wordcount::WordCount>::default()),
        #[cfg(feature = "grep")]
        Box::new(mapreduce::Job::<grep::Grep>::default()),
        #[cfg(feature = "bench")]
        Box::new(litebench::Bench),
        #[cfg(feature = "bench")]
        Box::new(litebench::Progress),
        #[cfg(feature = "echo")]
        Box::new(echo::Echo),
        #[cfg(feature = "semantics")]
        Box::new(semantics::Suite),
    ];
    apps.extend(perftest);
    apps
}
