//! Prints the names of all applications, one in each line.

fn main() {
    for app in applications::all() {
        println!("{}", app.manifest().name);
    }
}
