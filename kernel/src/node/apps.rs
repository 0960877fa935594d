//! The applications of this image, selected by features.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use runtime::App;

/// Returns all applications. perftest, if built in, needs more than LITE and is passed by the caller.
pub(super) fn all(perftest: Option<Box<dyn App>>) -> Vec<Box<dyn App>> {
    let mut apps: Vec<Box<dyn App>> = vec![
        #[cfg(feature = "wordcount")]
        Box::new(mapreduce::Job::<wordcount::WordCount>::default()),
        #[cfg(feature = "grep")]
        Box::new(mapreduce::Job::<grep::Grep>::default()),
        #[cfg(feature = "bench")]
        Box::new(litebench::Bench),
        #[cfg(feature = "bench")]
        Box::new(litebench::Paced),
        #[cfg(feature = "bench")]
        Box::new(litebench::Progress),
        #[cfg(feature = "bench")]
        Box::new(litebench::Qos),
        #[cfg(feature = "echo")]
        Box::new(echo::Echo),
        #[cfg(feature = "semantics")]
        Box::new(semantics::Suite),
    ];
    #[cfg(feature = "graph")]
    apps.extend(graph::apps());
    apps.extend(perftest);
    apps
}
