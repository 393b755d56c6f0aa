; A team of threads that stays together through all kernels of a step. See thread_team.py.
;
; TVM's pool starts its threads once, each calls `member`. Thread 0 leads: it calls the function of
; the step, and each parallel kernel in it comes to `launch`. The others wait in `member` for what
; is launched, and leave when there is nothing more. Whoever waits turns in a loop; after a while it
; lets other programs have its core each time.
;
; Where others have the cores, members wait for those whose core is taken: a hundred times in a step,
; for milliseconds each. So after each step `judge` looks at what the cores have done. If the members
; that had a core would have been as fast without the others, the next steps are theirs alone, until
; all try again.
;
; A module has one team of at most 256 threads. One thread at a time can lead it; a second one computes with TVM's pool.

%Env = type { ptr, i32 }                   ; TVMParallelGroupEnv: counters of barriers, tasks
%Posted = type { i64, ptr, ptr }           ; number of launches, the kernel (null: go), its data
%Done = type { i64, i32, i64, i64, i64, [24 x i8] }
; Of a member: the last launch that it has ended, and its status; then nanoseconds of its core in this
; step, those of them in which it waited for long, and until when these are counted.
%Window = type { i64, i64, i64 }           ; nanoseconds of steps, of cores in them, of work
%Step = type { ptr, ptr, i32, ptr, i32 }   ; function, arguments, how many, result, status

@__TVMBackendParallelLaunch = weak global ptr null     ; what kernels call; the linker sets both
@__TVMBackendParallelBarrier = weak global ptr null
@tvm_launch = internal global ptr null

@is_led = internal global i32 0, align 64
@leader = internal global i64 0            ; its pthread_self(); 0: nobody
@env = internal global %Env zeroinitializer
@first = internal global i64 0             ; launches before the step
@posted = internal global %Posted zeroinitializer, align 64
@done = internal global [256 x %Done] zeroinitializer, align 64
@counters = internal global [256 x [16 x i32]] zeroinitializer, align 64
@lone = internal global %Env { ptr @lone_counters, i32 1 }
@lone_counters = internal global [16 x i32] zeroinitializer, align 64

@size = internal global i32 0              ; members of the next steps; 0: all
@window = internal global %Window zeroinitializer
@held = internal global i64 0              ; nanoseconds of steps until all members try again
@hold = internal global i64 100000000      ; how many there are the next time

@kind = internal constant [13 x i8] c"RuntimeError\00"
@message = internal constant [34 x i8] c"a thread could not end its kernel\00"

declare i64 @pthread_self()
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
declare i32 @TVMFFIFunctionCall(ptr, ptr, i32, ptr)
declare void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
{declare_pause}

define internal i64 @nanoseconds(i32 %clock) {
  %time = alloca { i64, i64 }
  call i32 @clock_gettime(i32 %clock, ptr %time)
  %seconds = load i64, ptr %time
  %more_at = getelementptr { i64, i64 }, ptr %time, i32 0, i32 1
  %more = load i64, ptr %more_at
  %whole = mul i64 %seconds, 1000000000
  %all = add i64 %whole, %more
  ret i64 %all
}

; One turn of a loop in which a member waits; own: his %Done. The first turns are not counted: most
; waits are as short, and to ask for the time is a call of the system.
define internal void @rest(i32 %turns, ptr %own) {
  %is_long = icmp uge i32 %turns, 1000
  %has_some = icmp uge i32 %turns, 128
  %of_128 = and i32 %turns, 127
  %is_whole = icmp eq i32 %of_128, 0
  %is_due = and i1 %has_some, %is_whole
  %counts = or i1 %is_due, %is_long
  br i1 %counts, label %time, label %pause
time:
  %now = call i64 @nanoseconds(i32 {core_clock})
  %until_at = getelementptr %Done, ptr %own, i32 0, i32 4
  %is_first = icmp eq i32 %turns, 128
  br i1 %is_first, label %mark, label %add
add:
  %until = load i64, ptr %until_at
  %passed = sub i64 %now, %until
  %waited_at = getelementptr %Done, ptr %own, i32 0, i32 3
  %before = load i64, ptr %waited_at
  %waited = add i64 %before, %passed
  store i64 %waited, ptr %waited_at
  br label %mark
mark:
  store i64 %now, ptr %until_at
  br i1 %is_long, label %yield, label %pause
yield:
  call i32 @sched_yield()
  ret void
pause:
  {pause}
  ret void
}

; A launch without a team, by so many threads; 0: all.
define internal i32 @launch_without(ptr %kernel, ptr %data, i32 %size) {
  %is_one = icmp eq i32 %size, 1
  br i1 %is_one, label %one, label %several
one:                                       ; TVM would yield, which takes milliseconds then
  %own = call i32 %kernel(i32 0, ptr @lone, ptr %data)
  ret i32 %own
several:
  %tvm = load ptr, ptr @tvm_launch
  %status = call i32 %tvm(ptr %kernel, ptr %data, i32 %size)
  ret i32 %status
}

; In place of TVMBackendParallelLaunch.
define internal i32 @launch(ptr %kernel, ptr %data, i32 %tasks) {
  %self = call i64 @pthread_self()
  %leader = load atomic i64, ptr @leader monotonic, align 8
  %leads = icmp eq i64 %self, %leader
  br i1 %leads, label %post, label %alone
alone:
  %size = load i32, ptr @size
  %is_all = icmp eq i32 %size, 0
  %threads = select i1 %is_all, i32 %tasks, i32 %size
  %status_alone = call i32 @launch_without(ptr %kernel, ptr %data, i32 %threads)
  ret i32 %status_alone
post:
  %before = load i64, ptr @posted
  %now = add i64 %before, 1
  store ptr %kernel, ptr getelementptr (%Posted, ptr @posted, i32 0, i32 1)
  store ptr %data, ptr getelementptr (%Posted, ptr @posted, i32 0, i32 2)
  store atomic i64 %now, ptr @posted release, align 8
  %own = call i32 %kernel(i32 0, ptr @env, ptr %data)
  %members = load i32, ptr getelementptr (%Env, ptr @env, i32 0, i32 1)
  br label %next
next:
  %member = phi i32 [ 1, %post ], [ %another, %ended ]
  %status = phi i32 [ %own, %post ], [ %both, %ended ]
  %is_one = icmp slt i32 %member, %members
  br i1 %is_one, label %ask, label %all
ask:
  %his = getelementptr [256 x %Done], ptr @done, i32 0, i32 %member
  br label %look
look:
  %turns = phi i32 [ 0, %ask ], [ %more, %wait ]
  %last = load atomic i64, ptr %his acquire, align 8
  %has_ended = icmp eq i64 %last, %now
  br i1 %has_ended, label %ended, label %wait
wait:
  call void @rest(i32 %turns, ptr @done)
  %more = add i32 %turns, 1
  br label %look
ended:
  %place = getelementptr %Done, ptr %his, i32 0, i32 1
  %theirs = load i32, ptr %place
  %both = or i32 %status, %theirs
  %another = add i32 %member, 1
  br label %next
all:
  %is_well = icmp eq i32 %status, 0
  br i1 %is_well, label %good, label %bad
good:
  ret i32 0
bad:
  call void @TVMFFIErrorSetRaisedFromCStr(ptr @kind, ptr @message)
  ret i32 -1
}

; In place of TVMBackendParallelBarrier, on its counters or ours. They run over after some hours, so
; the difference counts.
define internal i32 @barrier(i32 %task, ptr %env) {
  %counters = load ptr, ptr %env
  %place = getelementptr %Env, ptr %env, i32 0, i32 1
  %members = load i32, ptr %place
  %own = getelementptr [16 x i32], ptr %counters, i32 %task
  %before = atomicrmw add ptr %own, i32 1 acq_rel
  %done = getelementptr [256 x %Done], ptr @done, i32 0, i32 %task
  br label %next
next:
  %member = phi i32 [ 0, %0 ], [ %another, %came ]
  %is_one = icmp slt i32 %member, %members
  br i1 %is_one, label %ask, label %all
ask:
  %his = getelementptr [16 x i32], ptr %counters, i32 %member
  br label %look
look:
  %turns = phi i32 [ 0, %ask ], [ %more, %wait ]
  %count = load atomic i32, ptr %his acquire, align 4
  %ahead = sub i32 %count, %before
  %has_come = icmp sgt i32 %ahead, 0
  br i1 %has_come, label %came, label %wait
wait:
  call void @rest(i32 %turns, ptr %done)
  %more = add i32 %turns, 1
  br label %look
came:
  %another = add i32 %member, 1
  br label %next
all:
  ret i32 0
}

; What each thread of TVM's pool does during a step.
define internal i32 @member(i32 %task, ptr %env, ptr %step) {
  %began = call i64 @nanoseconds(i32 {core_clock})
  %own = getelementptr [256 x %Done], ptr @done, i32 0, i32 %task
  %core_at = getelementptr %Done, ptr %own, i32 0, i32 2
  %waited_at = getelementptr %Done, ptr %own, i32 0, i32 3
  store i64 0, ptr %waited_at
  %leads = icmp eq i32 %task, 0
  br i1 %leads, label %lead, label %follow
lead:
  %members_at = getelementptr %Env, ptr %env, i32 0, i32 1
  %members = load i32, ptr %members_at
  store i32 %members, ptr getelementptr (%Env, ptr @env, i32 0, i32 1)
  store ptr @counters, ptr @env
  br label %clear
clear:                                     ; a member that was left out has met nobody
  %other = phi i32 [ 0, %lead ], [ %another, %clear ]
  %counter = getelementptr [256 x [16 x i32]], ptr @counters, i32 0, i32 %other
  store i32 0, ptr %counter
  %another = add i32 %other, 1
  %is_one = icmp slt i32 %another, %members
  br i1 %is_one, label %clear, label %compute_all
compute_all:
  %self = call i64 @pthread_self()
  store atomic i64 %self, ptr @leader monotonic, align 8
  %function = load ptr, ptr %step
  %args_at = getelementptr %Step, ptr %step, i32 0, i32 1
  %args = load ptr, ptr %args_at
  %count_at = getelementptr %Step, ptr %step, i32 0, i32 2
  %count = load i32, ptr %count_at
  %result_at = getelementptr %Step, ptr %step, i32 0, i32 3
  %result = load ptr, ptr %result_at
  %status = call i32 @TVMFFIFunctionCall(ptr %function, ptr %args, i32 %count, ptr %result)
  %status_at = getelementptr %Step, ptr %step, i32 0, i32 4
  store i32 %status, ptr %status_at
  store atomic i64 0, ptr @leader monotonic, align 8
  %before = load i64, ptr @posted
  %now = add i64 %before, 1
  store ptr null, ptr getelementptr (%Posted, ptr @posted, i32 0, i32 1)
  store atomic i64 %now, ptr @posted release, align 8
  br label %go
follow:
  %first = load i64, ptr @first
  %own_status = getelementptr %Done, ptr %own, i32 0, i32 1
  br label %again
again:
  %last = phi i64 [ %first, %follow ], [ %launch, %compute ]
  br label %look
look:
  %turns = phi i32 [ 0, %again ], [ %more, %wait ]
  %launch = load atomic i64, ptr @posted acquire, align 8
  %is_new = icmp ne i64 %launch, %last
  br i1 %is_new, label %come, label %wait
wait:
  call void @rest(i32 %turns, ptr %own)
  %more = add i32 %turns, 1
  br label %look
come:
  %kernel = load ptr, ptr getelementptr (%Posted, ptr @posted, i32 0, i32 1)
  %data = load ptr, ptr getelementptr (%Posted, ptr @posted, i32 0, i32 2)
  %goes = icmp eq ptr %kernel, null
  br i1 %goes, label %go, label %compute
compute:
  %its_status = call i32 %kernel(i32 %task, ptr @env, ptr %data)
  store i32 %its_status, ptr %own_status
  store atomic i64 %launch, ptr %own release, align 8
  br label %again
go:
  %ended = call i64 @nanoseconds(i32 {core_clock})
  %core = sub i64 %ended, %began
  store i64 %core, ptr %core_at
  ret i32 0
}

; After a step that took so long: how many members the next one has.
define internal void @judge(i64 %passed) {
  %size = load i32, ptr @size
  %is_small = icmp ne i32 %size, 0
  br i1 %is_small, label %keep, label %look
keep:
  %held = load i64, ptr @held
  %left = sub i64 %held, %passed
  store i64 %left, ptr @held
  %goes_on = icmp sgt i64 %left, 0
  br i1 %goes_on, label %end, label %try
try:
  store i32 0, ptr @size
  ret void
look:
  %members = load i32, ptr getelementptr (%Env, ptr @env, i32 0, i32 1)
  %time_before = load i64, ptr @window
  %cores_before = load i64, ptr getelementptr (%Window, ptr @window, i32 0, i32 1)
  %work_before = load i64, ptr getelementptr (%Window, ptr @window, i32 0, i32 2)
  br label %each
each:
  %member = phi i32 [ 0, %look ], [ %another, %each ]
  %cores = phi i64 [ %cores_before, %look ], [ %more_cores, %each ]
  %work = phi i64 [ %work_before, %look ], [ %more_work, %each ]
  %core_at = getelementptr [256 x %Done], ptr @done, i32 0, i32 %member, i32 2
  %waited_at = getelementptr [256 x %Done], ptr @done, i32 0, i32 %member, i32 3
  %core = load i64, ptr %core_at
  %waited = load i64, ptr %waited_at
  %worked = sub i64 %core, %waited
  %more_cores = add i64 %cores, %core
  %more_work = add i64 %work, %worked
  %another = add i32 %member, 1
  %is_one = icmp slt i32 %another, %members
  br i1 %is_one, label %each, label %add
add:
  %time = add i64 %time_before, %passed
  store i64 %time, ptr @window
  store i64 %more_cores, ptr getelementptr (%Window, ptr @window, i32 0, i32 1)
  store i64 %more_work, ptr getelementptr (%Window, ptr @window, i32 0, i32 2)
  %is_short = icmp slt i64 %time, 40000000
  br i1 %is_short, label %end, label %decide
decide:                                    ; cores that were others', counted from 0.3 of one
  store %Window zeroinitializer, ptr @window
  %wide = zext i32 %members to i64
  %whole = mul i64 %time, %wide
  %lost = sub i64 %whole, %more_cores
  %lost10 = mul i64 %lost, 10
  %time7 = mul i64 %time, 7
  %time10 = mul i64 %time, 10
  %raised = add i64 %lost10, %time7
  %gone = sdiv i64 %raised, %time10
  %there = sub i64 %wide, %gone
  %few = call i64 @llvm.smax.i64(i64 %there, i64 1)
  %is_less = icmp slt i64 %few, %wide
  %expected11 = mul i64 %more_work, 11
  %found10 = mul i64 %time10, %few
  %is_slow = icmp sgt i64 %found10, %expected11
  %shrinks = and i1 %is_less, %is_slow
  br i1 %shrinks, label %shrink, label %stay
shrink:
  %new_size = trunc i64 %few to i32
  store i32 %new_size, ptr @size
  %hold = load i64, ptr @hold
  store i64 %hold, ptr @held
  %twice = mul i64 %hold, 2
  %longer = call i64 @llvm.smin.i64(i64 %twice, i64 4000000000)
  store i64 %longer, ptr @hold
  ret void
stay:
  store i64 100000000, ptr @hold           ; as at first
  ret void
end:
  ret void
}

; form(): once, behind linking.
define i32 @__tvm_ffi_form(ptr %self, ptr %args, i32 %count, ptr %result) {
  %tvm = load ptr, ptr @__TVMBackendParallelLaunch
  store ptr %tvm, ptr @tvm_launch
  store ptr @launch, ptr @__TVMBackendParallelLaunch
  store ptr @barrier, ptr @__TVMBackendParallelBarrier
  ret i32 0
}

; forget(): in a forked process, where no thread of the team is.
define i32 @__tvm_ffi_forget(ptr %self, ptr %args, i32 %count, ptr %result) {
  store atomic i64 0, ptr @leader monotonic, align 8
  store atomic i32 0, ptr @is_led release, align 4
  ret i32 0
}

; members(): how many the next step has; 0: all.
define i32 @__tvm_ffi_members(ptr %self, ptr %args, i32 %count, ptr %result) {
  %size = load i32, ptr @size
  %wide = zext i32 %size to i64
  %value_at = getelementptr i8, ptr %result, i64 8
  store i32 1, ptr %result                 ; it is an int
  store i64 %wide, ptr %value_at
  ret i32 0
}

; launches(): how many there were so far. Any thread may ask, also in the middle of a step.
define i32 @__tvm_ffi_launches(ptr %self, ptr %args, i32 %count, ptr %result) {
  %number = load atomic i64, ptr @posted monotonic, align 8
  %value_at = getelementptr i8, ptr %result, i64 8
  store i32 1, ptr %result                 ; it is an int
  store i64 %number, ptr %value_at
  ret i32 0
}

; run(function, ...): function(...), with a team if it is free.
define i32 @__tvm_ffi_run(ptr %self, ptr %args, i32 %count, ptr %result) {
  %function_at = getelementptr i8, ptr %args, i64 8   ; a TVMFFIAny has 16 bytes: its type, a pointer
  %function = load ptr, ptr %function_at
  %own_args = getelementptr i8, ptr %args, i64 16
  %own_count = sub i32 %count, 1
  %taken = cmpxchg ptr @is_led, i32 0, i32 1 acquire monotonic
  %is_free = extractvalue { i32, i1 } %taken, 1
  br i1 %is_free, label %together, label %alone
alone:
  %lone = call i32 @TVMFFIFunctionCall(ptr %function, ptr %own_args, i32 %own_count, ptr %result)
  ret i32 %lone
together:
  %step = alloca %Step
  store ptr %function, ptr %step
  %args_at = getelementptr %Step, ptr %step, i32 0, i32 1
  store ptr %own_args, ptr %args_at
  %count_at = getelementptr %Step, ptr %step, i32 0, i32 2
  store i32 %own_count, ptr %count_at
  %result_at = getelementptr %Step, ptr %step, i32 0, i32 3
  store ptr %result, ptr %result_at
  %first = load i64, ptr @posted
  store i64 %first, ptr @first
  %size = load i32, ptr @size
  %begin = call i64 @nanoseconds(i32 {clock})
  call i32 @launch_without(ptr @member, ptr %step, i32 %size)
  %end = call i64 @nanoseconds(i32 {clock})
  %passed = sub i64 %end, %begin
  call void @judge(i64 %passed)
  store atomic i32 0, ptr @is_led release, align 4
  %status_at = getelementptr %Step, ptr %step, i32 0, i32 4
  %status = load i32, ptr %status_at
  ret i32 %status
}
