//! Further actions of a hostile guest with a virtual function: the channel to its master, and resources.

use crate::guest;
use crate::input::Input;
use crate::world::World;

/// Performs one action.
pub(crate) fn slave_action(action: u8, input: &mut Input<'_>, world: &mut World) {
    match action % 32 {
        0..6 => guest::good_send(input, world),
        6..9 => guest::send(input, world),
        9 | 10 => guest::receive(input, world),
        11 => guest::doorbell(input, world),
        12 | 13 => guest::poke(input, world),
        14 | 15 => guest::frame(input, world),
        16 | 17 => guest::transition(input, world),
        18 | 19 => guest::command(input, world),
        20 | 21 => guest::object(input, world),
        22..26 => resource(input, world),
        26 => channel(input, world),
        27 | 28 => come_up(input, world),
        _ => guest::pass(input, world),
    }
}

/// Kinds of resources, each with an allocation step that drivers use: reserve, map, or both.
const STEPS: [(u32, u32); 11] =
    [(0, 0), (0, 2), (1, 1), (2, 1), (3, 0), (4, 0), (4, 2), (5, 1), (6, 1), (7, 1), (9, 0)];

/// Runs ALLOC_RES or FREE_RES for a number that may exist.
fn resource(input: &mut Input<'_>, world: &mut World) {
    let opcode = 0xf00 + u32::from(input.byte() % 2);
    let port = u32::from(input.byte() % 3);
    let (kind, step) = if input.one_in(4) {
        (u32::from(input.byte() % 11), u32::from(input.byte() % 4))
    } else {
        input.pick(&STEPS)
    };
    let low = match input.byte() % 4 {
        0 => input.word(),
        1 => u32::from(input.byte()),
        _ => guest::queue_number(input, world),
    };
    let high = if input.one_in(4) { input.word() } else { u32::from(input.byte() % 9) };
    let (status, _) =
        world.bad.slave_command(opcode, step, port << 8 | kind, u64::from(high) << 32 | u64::from(low));
    guest::count(status, world);
}

/// Writes words to the channel: any word, the words for the address of the command registers, or a command
/// that ends with an event.
fn channel(input: &mut Input<'_>, world: &mut World) {
    match input.byte() % 4 {
        0 => {
            let offset = 4 * u64::from(input.byte() % 5);
            let word = input.word();
            world.bad.write_channel(offset, word);
            world.bad.channel(offset);
        }
        1 => {
            let (command, parameter) = (u32::from(input.byte() % 7), input.word());
            world.bad.speak(command, parameter);
        }
        2 => {
            world.bad.fall_in();
            for command in 1..=5 {
                let parameter = if input.one_in(2) { 0 } else { input.word() };
                world.bad.speak(command, parameter);
            }
        }
        _ => {
            let opcode = input.raw() as u16;
            world.bad.post_with_event(opcode);
        }
    }
}

/// Restarts the slave, which may connect again to the honest guest.
fn come_up(input: &mut Input<'_>, world: &mut World) {
    world.bad.fall_in();
    world.bad.forget();
    if input.one_in(2) {
        world.bad.come_up();
        world.connect_bad();
        if input.one_in(2) {
            guest::make_queues(world);
        }
    }
}
