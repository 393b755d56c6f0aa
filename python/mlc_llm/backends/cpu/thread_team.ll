; A team of threads that stays together through all kernels of a step. See thread_team.py.
;
; TVM's pool starts its threads once, each calls `member`. Thread 0 leads: it calls the function of
; the step, and each parallel kernel in it comes to `launch`. The others wait in `member` for what
; is launched, and leave when there is nothing more. Whoever waits turns in a loop; after a while it
; lets other programs have its core each time.
;
; A module has one team of at most 256 threads. One thread at a time can lead it; a second one computes with TVM's pool.

%Env = type { ptr, i32 }                   ; TVMParallelGroupEnv: counters of barriers, tasks
%Posted = type { i64, ptr, ptr }           ; number of launches, the kernel (null: go), its data
%Done = type { i64, i32, [52 x i8] }       ; last launch that a member has ended, its status
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

@kind = internal constant [13 x i8] c"RuntimeError\00"
@message = internal constant [34 x i8] c"a thread could not end its kernel\00"

declare i64 @pthread_self()
declare i32 @sched_yield()
declare i32 @TVMFFIFunctionCall(ptr, ptr, i32, ptr)
declare void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)
{declare_pause}

define internal void @rest(i32 %turns) {
  %is_long = icmp ugt i32 %turns, 1000
  br i1 %is_long, label %yield, label %pause
yield:
  call i32 @sched_yield()
  ret void
pause:
  {pause}
  ret void
}

; In place of TVMBackendParallelLaunch.
define internal i32 @launch(ptr %kernel, ptr %data, i32 %tasks) {
  %self = call i64 @pthread_self()
  %leader = load atomic i64, ptr @leader monotonic, align 8
  %leads = icmp eq i64 %self, %leader
  br i1 %leads, label %post, label %alone
alone:
  %tvm = load ptr, ptr @tvm_launch
  %tvm_status = call i32 %tvm(ptr %kernel, ptr %data, i32 %tasks)
  ret i32 %tvm_status
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
  call void @rest(i32 %turns)
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
  call void @rest(i32 %turns)
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
  %leads = icmp eq i32 %task, 0
  br i1 %leads, label %lead, label %follow
lead:
  %members_at = getelementptr %Env, ptr %env, i32 0, i32 1
  %members = load i32, ptr %members_at
  store i32 %members, ptr getelementptr (%Env, ptr @env, i32 0, i32 1)
  store ptr @counters, ptr @env
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
  ret i32 0
follow:
  %first = load i64, ptr @first
  %own = getelementptr [256 x %Done], ptr @done, i32 0, i32 %task
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
  call void @rest(i32 %turns)
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
  ret i32 0
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
  %launch = load ptr, ptr @tvm_launch
  call i32 %launch(ptr @member, ptr %step, i32 0)
  store atomic i32 0, ptr @is_led release, align 4
  %status_at = getelementptr %Step, ptr %step, i32 0, i32 4
  %status = load i32, ptr %status_at
  ret i32 %status
}
