"""Members that do not exist yet.

job_object    which object says what pods a job is to have
job_pods      those pods, as the job's operator makes them, and which of them it makes only after others
              have started. Pure
job_reader    the objects, and the claim templates of their pods, read as they are needed
leader_first  who goes before the others are made, and the places that are kept for these. Pure
seat_exchange places that are held for lost members, and do not do any more, are held elsewhere
"""
